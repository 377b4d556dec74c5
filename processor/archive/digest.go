package archive

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Digest is what a set of rows comes to: their number, and the sum of the
// SHA-256 of each row's line, as numbers of 256 bits. It does not depend on the
// order: a table is read as it lies on the disk, with no sort, and its export is
// sorted by tenant. A sum, unlike an exclusive or, sees a row that is there
// twice. It finds what was lost, added or changed by accident; it is no seal
// against who can choose rows, for which each object has a SHA-256 of its bytes.
type Digest struct {
	Rows   int64
	SHA256 [32]byte
}

// digestName stands before a digest's digits in a manifest.
const digestName = "sum-sha256:"

// String is the digest's sum as a manifest says it.
func (d Digest) String() string { return digestName + hex.EncodeToString(d.SHA256[:]) }

func parseDigest(rows int64, s string) (Digest, error) {
	d := Digest{Rows: rows}
	digits, ok := strings.CutPrefix(s, digestName)
	b, err := hex.DecodeString(digits)
	if !ok || err != nil || len(b) != len(d.SHA256) {
		return d, fmt.Errorf("%w: its digest cannot be read", ErrCorrupt)
	}
	copy(d.SHA256[:], b)
	return d, nil
}

// Add takes the rows of another digest in.
func (d *Digest) Add(o Digest) {
	d.Rows += o.Rows
	var carry uint64
	for i := 24; i >= 0; i -= 8 {
		var sum uint64
		sum, carry = bits.Add64(binary.BigEndian.Uint64(d.SHA256[i:]), binary.BigEndian.Uint64(o.SHA256[i:]), carry)
		binary.BigEndian.PutUint64(d.SHA256[i:], sum)
	}
}

func (d *Digest) line(line []byte) { d.Add(Digest{1, sha256.Sum256(line)}) }

// settings that the text of a row depends on, for the rest of a transaction.
const settings = `SELECT set_config('TimeZone', 'UTC', true), set_config('bytea_output', 'hex', true), set_config('extra_float_digits', '1', true),
    set_config('IntervalStyle', 'iso_8601', true), set_config('work_mem', '64MB', true)`

// DigestTable gives the digest of a table as it stands in the caller's
// transaction, under whatever lock it holds: Export's, when no row has changed.
// It sets what the text of a row depends on for the rest of that transaction.
// The table is read once, in the order of the disk, and hashed as it comes.
func (a *Archive) DigestTable(ctx context.Context, tx pgx.Tx, table string) (Digest, error) {
	var d Digest
	name, err := resolve(ctx, tx, table, 0)
	if err == nil {
		_, err = tx.Exec(ctx, settings)
	}
	if err == nil {
		err = copyRows(ctx, tx, `SELECT to_jsonb(t)::text FROM `+name+` t`, func(fields [][]byte) error {
			d.line(fields[0])
			return nil
		})
	}
	if err != nil {
		return Digest{}, fmt.Errorf("digest table %s: %w", table, err)
	}
	return d, nil
}

// resolve gives a table's quoted name; oid 0 takes whatever table has it.
func resolve(ctx context.Context, tx pgx.Tx, table string, oid uint32) (string, error) {
	var name *string
	err := tx.QueryRow(ctx, `SELECT (SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = to_regclass($1)::oid AND c.relkind IN ('r', 'p') AND ($2::oid = 0 OR c.oid = $2::oid))`, table, oid).Scan(&name)
	if err != nil {
		return "", err
	}
	if name == nil {
		return "", ErrMismatch
	}
	return *name, nil
}
