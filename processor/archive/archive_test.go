package archive_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/softcrum/carril/internal/storage"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/processor/archive"
)

func TestMain(m *testing.M) {
	if raw := os.Getenv(envChild); raw != "" {
		exportUntilKilled(raw)
	}
	testkit.Main(m, func() error { return goleak.Find() })
}

// shop is a database with a leaf that is due, and a storage.
type shop struct {
	t       *testing.T
	pool    *pgxpool.Pool
	storage storage.Store
	cfg     storage.Config
	tenants []uuid.UUID
	leaf    archive.Leaf
}

// The leaf's month: one that migrations did not make.
var month = time.Date(2023, 3, 1, 0, 0, 0, 0, time.UTC)

// properties of events that a careless reader loses something of.
var properties = []string{
	`{"n": 12345678901234567890.123456789, "s": "plain"}`,
	`{"text": "tab\t newline\n quote\" backslash\\ nul-free </script> \u2028"}`,
	`{"emoji": "😀👩‍👩‍👧", "arabic": "مرحبا", "e": 1e-30, "z": 0.10}`,
	`{"nested": {"a": [1, 2.50, null, true, {"b": "\\N"}]}, "empty": {}, "long": "` + strings.Repeat("x", 300_000) + `"}`,
}

func newShop(t *testing.T) *shop {
	t.Helper()
	pool := testkit.Pool(t)
	s := &shop{t: t, pool: pool, cfg: storage.Config{URL: "file://" + t.TempDir()}}
	var err error
	s.storage, err = storage.Open(s.cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.storage.Close()) })
	for range 3 {
		id := uuid.New()
		s.exec(`INSERT INTO core.tenants (tenant_id, slug, name, plan_id, cell_id) VALUES ($1, $2, 'x', 'starter', 'c1')`, id, "t-"+id.String()[:8])
		s.tenants = append(s.tenants, id)
	}
	s.exec(`SELECT core.ensure_partition('core.tracked_events', $1)`, month)
	return s
}

func (s *shop) exec(sql string, args ...any) {
	s.t.Helper()
	_, err := s.pool.Exec(s.t.Context(), sql, args...)
	require.NoError(s.t, err)
}

// fill adds n events of a tenant, through the month from at on, with each of the
// properties in turn.
func (s *shop) fill(tenant uuid.UUID, at time.Time, n int) {
	s.t.Helper()
	s.exec(`INSERT INTO core.tracked_events (tenant_id, event_id, cell_id, contact_id, kind, event_name, properties, occurred_at, occurred_offset, occurred_claimed,
	received_at, idempotency_key, correlation_id, retention_months, lane, lane_seq)
SELECT $1, gen_random_uuid(), 'c1', gen_random_uuid(), 'track', 'invoice.paid', ($4::text[])[1 + i % cardinality($4::text[])]::jsonb,
	$2::timestamptz + i * interval '1 second' + interval '1 microsecond', -18000, CASE i % 2 WHEN 0 THEN $2::timestamptz END, now(), 'key-' || i || '-"ü', 'c', 13, 1, i
FROM generate_series(1, $3::int) i`, tenant, at, n, properties)
}

// detach makes the month's leaf of 13 months one that retention has detached.
func (s *shop) detach() archive.Leaf {
	s.t.Helper()
	const table = "core.tracked_events_202303_r13"
	l := archive.Leaf{Run: uuid.New(), Parent: "core.tracked_events", Table: table, From: month, To: month.AddDate(0, 1, 0), RetentionMonths: 13}
	require.NoError(s.t, s.pool.QueryRow(s.t.Context(), `SELECT to_regclass($1)::oid`, table).Scan(&l.OID))
	s.exec(`ALTER TABLE core.tracked_events_202303 DETACH PARTITION core.tracked_events_202303_r13`)
	s.exec(`INSERT INTO core.retention_ledger (run_id, parent, leaf, leaf_oid, lower_bound, upper_bound, retention_months, state)
		VALUES ($1, 'core.tracked_events', $2, $3, $4, $5, 13, 'detached')`, l.Run, table, l.OID, l.From, l.To)
	s.leaf = l
	return l
}

func (s *shop) archive(cfg archive.Config) *archive.Archive {
	s.t.Helper()
	a, err := archive.New(cfg, archive.Deps{Pool: s.pool, Storage: s.storage, Log: testkit.Logger(s.t)})
	require.NoError(s.t, err)
	return a
}

func (s *shop) digest(a *archive.Archive, table string) (d archive.Digest) {
	s.t.Helper()
	require.NoError(s.t, pgx.BeginFunc(s.t.Context(), s.pool, func(tx pgx.Tx) (err error) {
		if _, err = tx.Exec(s.t.Context(), `LOCK TABLE `+table+` IN ACCESS EXCLUSIVE MODE`); err != nil {
			return err
		}
		d, err = a.DigestTable(s.t.Context(), tx, table)
		return err
	}))
	return d
}

func (s *shop) manifest(name string) *archive.Manifest {
	s.t.Helper()
	m, err := archive.ReadManifest(s.t.Context(), s.storage, name)
	require.NoError(s.t, err)
	return m
}

// raw is an object as it is stored.
func (s *shop) raw(name string) []byte {
	s.t.Helper()
	r, err := s.storage.Open(s.t.Context(), name)
	require.NoError(s.t, err)
	b, err := io.ReadAll(r)
	require.NoError(s.t, errors.Join(err, r.Close()))
	return b
}

// lines reads an object without any code of the product.
func (s *shop) lines(name string) []string {
	s.t.Helper()
	var r io.Reader
	var err error
	if strings.HasSuffix(name, ".gz") {
		r, err = gzip.NewReader(bytes.NewReader(s.raw(name)))
	} else {
		var d *zstd.Decoder
		if d, err = zstd.NewReader(bytes.NewReader(s.raw(name))); err == nil {
			defer d.Close()
			r = d
		}
	}
	require.NoError(s.t, err)
	var all []string
	in := bufio.NewReader(r)
	for {
		l, err := in.ReadString('\n')
		if errors.Is(err, io.EOF) {
			require.Empty(s.t, l, "the last line ends")
			return all
		}
		require.NoError(s.t, err)
		all = append(all, strings.TrimSuffix(l, "\n"))
	}
}

func (s *shop) objects(prefix string) []string {
	s.t.Helper()
	var names []string
	for o, err := range s.storage.List(s.t.Context(), prefix) {
		require.NoError(s.t, err)
		names = append(names, o.Name)
	}
	return names
}

// stored are the lines of a table, by PostgreSQL's word.
func (s *shop) stored(table string, tenant uuid.UUID) []string {
	s.t.Helper()
	rows, err := s.pool.Query(s.t.Context(), `SELECT to_jsonb(t)::text FROM `+table+` t WHERE tenant_id = $1`, tenant)
	require.NoError(s.t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(s.t, err)
	sort.Strings(all)
	return all
}

func TestLeaf(t *testing.T) {
	t.Parallel()
	// FS-CORE-0006 AC7
	for _, c := range []archive.Compression{archive.Zstd, archive.Gzip} {
		t.Run("IsReadBackAsItStood"+"With"+string(c), func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			s.fill(s.tenants[0], month, 40)
			s.fill(s.tenants[1], month, 7)
			l := s.detach()
			a := s.archive(archive.Config{Compression: c, ObjectBytes: 1 << 20})
			name, d, err := a.Export(t.Context(), l)
			require.NoError(t, err)
			require.Equal(t, int64(47), d.Rows)
			verified, err := a.Verify(t.Context(), name)
			require.NoError(t, err)
			require.Equal(t, d, verified)
			require.Equal(t, d, s.digest(a, l.Table), "the digest of the table")

			m := s.manifest(name)
			require.Equal(t, int64(47), m.Rows)
			require.Greater(t, len(m.Objects), 3, "a tenant's rows are divided after ObjectBytes")
			got := map[uuid.UUID][]string{}
			for _, o := range m.Objects {
				full := path.Join(path.Dir(name), o.Name)
				require.Contains(t, o.Name, o.TenantID.String())
				sum := sha256.Sum256(s.raw(full))
				require.Equal(t, hex.EncodeToString(sum[:]), o.SHA256, "sha256sum")
				lines := s.lines(full)
				require.Len(t, lines, int(o.Rows), "no trailer")
				content := sha256.Sum256([]byte(strings.Join(lines, "\n") + "\n"))
				require.Equal(t, hex.EncodeToString(content[:]), o.ContentSHA256, "zstd -dc | sha256sum")
				for _, one := range lines {
					require.True(t, json.Valid([]byte(one)))
				}
				got[*o.TenantID] = append(got[*o.TenantID], lines...)
			}
			for _, tenant := range s.tenants[:2] {
				sort.Strings(got[tenant])
				require.Equal(t, s.stored(l.Table, tenant), got[tenant])
			}
			all := strings.Join(got[s.tenants[0]], "\n")
			require.Contains(t, all, `12345678901234567890.123456789`)
			require.Contains(t, all, `😀👩‍👩‍👧`)
			require.Contains(t, all, `0.10`)
			require.Contains(t, all, `+00:00"`, "in UTC")
			require.Contains(t, name, fmt.Sprintf("/2023-03/r13/oid-%d/run-%s/", l.OID, l.Run))
		})
	}
	t.Run("IsExportedOnceARun", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		s.fill(s.tenants[0], month, 5)
		l, a := s.detach(), s.archive(archive.Config{})
		name, d, err := a.Export(t.Context(), l)
		require.NoError(t, err)
		before := s.objects("")
		again, d2, err := a.Export(t.Context(), l)
		require.NoError(t, err)
		require.Equal(t, name, again)
		require.Equal(t, d, d2)
		require.Equal(t, before, s.objects(""))
	})
	t.Run("IsDiscardedAndExportedAnewWhenItsRowsChanged", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		s.fill(s.tenants[0], month, 5)
		l, a := s.detach(), s.archive(archive.Config{})
		name, d, err := a.Export(t.Context(), l)
		require.NoError(t, err)
		s.exec(`UPDATE ` + l.Table + ` SET properties = '{}' WHERE lane_seq = 3`)
		now := s.digest(a, l.Table)
		require.NotEqual(t, d, now)
		require.Equal(t, d.Rows, now.Rows)
		require.NoError(t, a.Discard(t.Context(), name))
		require.NoError(t, a.Discard(t.Context(), name))
		require.Empty(t, s.objects(""))
		_, d, err = a.Export(t.Context(), l)
		require.NoError(t, err)
		require.Equal(t, now, d)
	})
	t.Run("MayBeEmpty", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		l, a := s.detach(), s.archive(archive.Config{})
		name, d, err := a.Export(t.Context(), l)
		require.NoError(t, err)
		require.Zero(t, d)
		verified, err := a.Verify(t.Context(), name)
		require.NoError(t, err)
		require.Equal(t, d, verified)
		require.Equal(t, d, s.digest(a, l.Table))
	})
	// I24
	t.Run("ThatIsRecreatedLeavesTheFirstExportUntouched", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		s.fill(s.tenants[0], month, 5)
		a := s.archive(archive.Config{})
		first, d, err := a.Export(t.Context(), s.detach())
		require.NoError(t, err)
		s.exec(`DROP TABLE core.tracked_events_202303_r13`)
		s.exec(`SELECT core.ensure_partition('core.tracked_events', $1)`, month)
		s.fill(s.tenants[0], month, 1)
		second, d2, err := a.Export(t.Context(), s.detach())
		require.NoError(t, err)
		require.NotEqual(t, first, second)
		require.Equal(t, int64(1), d2.Rows)
		verified, err := a.Verify(t.Context(), first)
		require.NoError(t, err)
		require.Equal(t, d, verified)
	})
	t.Run("IsNotAnotherTableOfItsName", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		l, a := s.detach(), s.archive(archive.Config{})
		l.OID++
		_, _, err := a.Export(t.Context(), l)
		require.ErrorIs(t, err, archive.ErrMismatch)
		l.Table = "core.nothing"
		_, _, err = a.Export(t.Context(), l)
		require.ErrorIs(t, err, archive.ErrMismatch)
		require.Empty(t, s.objects(""))
	})
	t.Run("OfSendsAndTheirHistory", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		a := s.archive(archive.Config{})
		for _, parent := range []string{"messaging.sends", "messaging.send_status_history"} {
			s.exec(`SELECT core.ensure_partition($1, $2)`, parent, month)
		}
		s.exec(`INSERT INTO messaging.sends (requested_at, retention_months, tenant_id, send_id, cell_id, request_id, recipient_index, contact_id, channel, category,
			provider, address, content, correlation_id, origin_event_id) VALUES ($1, 13, $2, gen_random_uuid(), 'c1', gen_random_uuid(), 0, gen_random_uuid(), 'email',
			'marketing', 'resend', 'ana@example.com', '{}', 'c', gen_random_uuid())`, month, s.tenants[0])
		l := archive.Leaf{Run: uuid.New(), Parent: "messaging.sends", Table: "messaging.sends_202303_r13", From: month, To: month.AddDate(0, 1, 0), RetentionMonths: 13}
		require.NoError(t, s.pool.QueryRow(t.Context(), `SELECT to_regclass($1)::oid`, l.Table).Scan(&l.OID))
		name, d, err := a.Export(t.Context(), l)
		require.NoError(t, err)
		require.Equal(t, int64(1), d.Rows)
		require.Equal(t, d, s.digest(a, l.Table))
		_, err = a.Verify(t.Context(), name)
		require.NoError(t, err)
	})
}

func TestVerify(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.fill(s.tenants[0], month, 5)
	s.fill(s.tenants[1], month, 5)
	l, a := s.detach(), s.archive(archive.Config{})
	name, _, err := a.Export(t.Context(), l)
	require.NoError(t, err)
	object := path.Join(path.Dir(name), s.manifest(name).Objects[0].Name)
	whole := s.raw(object)
	put := func(b []byte) { require.NoError(t, s.storage.Replace(t.Context(), object, b)) }
	t.Run("FindsAnyByteThatChanged", func(t *testing.T) {
		for i := 0; i < len(whole); i += max(len(whole)/40, 1) {
			b := bytes.Clone(whole)
			b[i] ^= 1
			put(b)
			_, err := a.Verify(t.Context(), name)
			require.ErrorIs(t, err, archive.ErrCorrupt, "byte %d", i)
		}
	})
	t.Run("FindsWhatIsMissingOrTooMuch", func(t *testing.T) {
		for _, b := range [][]byte{{}, whole[:len(whole)-1], append(bytes.Clone(whole), 0)} {
			put(b)
			_, err := a.Verify(t.Context(), name)
			require.ErrorIs(t, err, archive.ErrCorrupt)
		}
		require.NoError(t, s.storage.Delete(t.Context(), object))
		_, err := a.Verify(t.Context(), name)
		require.ErrorIs(t, err, archive.ErrCorrupt)
		_, err = a.Verify(t.Context(), "nothing/manifest.json")
		require.ErrorIs(t, err, storage.ErrNotFound)
		require.NotErrorIs(t, err, archive.ErrCorrupt)
	})
	t.Run("DoesNotBelieveTheManifest", func(t *testing.T) {
		put(whole)
		m := s.manifest(name)
		m.Objects = m.Objects[:1]
		b, err := json.Marshal(m)
		require.NoError(t, err)
		require.NoError(t, s.storage.Replace(t.Context(), name, b))
		_, err = a.Verify(t.Context(), name)
		require.ErrorIs(t, err, archive.ErrCorrupt)
	})
	t.Run("TellsABrokenConnectionFromABrokenObject", func(t *testing.T) {
		broken, err := archive.New(archive.Config{}, archive.Deps{Pool: s.pool, Storage: interrupted{s.storage}})
		require.NoError(t, err)
		_, err = broken.Verify(t.Context(), name)
		require.ErrorIs(t, err, errInterrupted)
		require.NotErrorIs(t, err, archive.ErrCorrupt)
	})
}

var errInterrupted = errors.New("the connection broke")

// interrupted is a storage whose objects, not manifests, end in the middle.
type interrupted struct{ storage.Store }

func (i interrupted) Open(ctx context.Context, name string) (io.ReadSeekCloser, error) {
	r, err := i.Store.Open(ctx, name)
	if err != nil || strings.HasSuffix(name, ".json") {
		return r, err
	}
	return &half{r, 20}, nil
}

type half struct {
	io.ReadSeekCloser
	left int
}

func (h *half) Read(p []byte) (int, error) {
	if h.left == 0 {
		return 0, errInterrupted
	}
	n, err := h.ReadSeekCloser.Read(p[:min(len(p), h.left)])
	h.left -= n
	return n, err
}

func TestRewrite(t *testing.T) {
	t.Parallel()
	const erased = `"idempotency_key": "key-3-`
	// takeOut empties the person's row, and drops another.
	takeOut := func(tenant uuid.UUID) archive.Keep {
		return func(of uuid.UUID, row []byte) ([]byte, bool, error) {
			if of == tenant && bytes.Contains(row, []byte(erased)) {
				return []byte(`{"erased": true}`), true, nil
			}
			return row, of != tenant || !bytes.Contains(row, []byte(`"key-4-`)), nil
		}
	}
	t.Run("ChangesTheObjectsThatHoldAPersonAndNoOther", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		s.fill(s.tenants[0], month, 20)
		s.fill(s.tenants[1], month, 20)
		l, a := s.detach(), s.archive(archive.Config{ObjectBytes: 500_000})
		name, d, err := a.Export(t.Context(), l)
		require.NoError(t, err)
		before := s.manifest(name)
		require.NoError(t, a.Rewrite(t.Context(), name, uuid.Nil, takeOut(s.tenants[0])))
		after := s.manifest(name)
		require.Equal(t, d.Rows-1, after.Rows)
		require.Equal(t, 1, after.Rewrites)
		kept := map[string]bool{}
		for _, o := range after.Objects {
			kept[o.Name] = true
		}
		gone := 0
		for _, o := range before.Objects {
			if !kept[o.Name] {
				gone++
				require.Equal(t, s.tenants[0], *o.TenantID)
			}
		}
		require.Equal(t, 1, gone)
		require.Len(t, s.objects(path.Dir(name)+"/"), len(after.Objects)+1, "what was replaced is deleted")
		verified, err := a.Verify(t.Context(), name)
		require.NoError(t, err)
		require.Equal(t, after.Digest, verified.String())
		for _, o := range after.Objects {
			lines := strings.Join(s.lines(path.Join(path.Dir(name), o.Name)), "\n")
			require.Equal(t, *o.TenantID == s.tenants[1] && strings.Contains(lines, `"key-3-`), strings.Contains(lines, erased))
		}
		was := s.objects("")
		require.NoError(t, a.Rewrite(t.Context(), name, uuid.Nil, takeOut(s.tenants[0])), "again")
		require.Equal(t, was, s.objects(""), "changes nothing")
	})
	t.Run("MayTakeOutEverything", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		s.fill(s.tenants[0], month, 20)
		s.fill(s.tenants[1], month, 3)
		l, a := s.detach(), s.archive(archive.Config{ObjectBytes: 500_000})
		name, _, err := a.Export(t.Context(), l)
		require.NoError(t, err)
		require.NoError(t, a.Rewrite(t.Context(), name, uuid.Nil, func(of uuid.UUID, row []byte) ([]byte, bool, error) { return row, of != s.tenants[0], nil }))
		m := s.manifest(name)
		require.Equal(t, int64(3), m.Rows)
		for _, o := range m.Objects {
			require.Equal(t, s.tenants[1], *o.TenantID)
		}
		_, err = a.Verify(t.Context(), name)
		require.NoError(t, err)
	})
	t.Run("LeavesEverythingWhereItIsRefused", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		s.fill(s.tenants[0], month, 5)
		l, a := s.detach(), s.archive(archive.Config{})
		name, _, err := a.Export(t.Context(), l)
		require.NoError(t, err)
		before := s.objects("")
		refused := errors.New("no")
		require.ErrorIs(t, a.Rewrite(t.Context(), name, uuid.Nil, func(uuid.UUID, []byte) ([]byte, bool, error) { return nil, false, refused }), refused)
		for _, bad := range []string{"", "{", "{}\n{}", "{\n}"} {
			require.ErrorIs(t, a.Rewrite(t.Context(), name, uuid.Nil, func(uuid.UUID, []byte) ([]byte, bool, error) { return []byte(bad), true, nil }), archive.ErrMismatch)
		}
		require.Equal(t, before, s.objects(""))
		_, err = a.Verify(t.Context(), name)
		require.NoError(t, err)
	})
}
