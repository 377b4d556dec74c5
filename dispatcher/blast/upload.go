package blast

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Limits of one transaction of an upload, and of what is remembered of it.
const (
	uploadChunk      = 1_000
	uploadChunkBytes = 2 << 20
	keptBadRows      = 1_000
	maxUploads       = 1_000
)

// Upload is how far a file of recipients has come. Rows count without the
// header; what was read is taken, a duplicate or refused.
type Upload struct {
	BlastID    uuid.UUID        `json:"blast_id"`
	UploadID   uuid.UUID        `json:"upload_id"`
	State      string           `json:"state"` // open: send the file again; done; failed
	Error      *string          `json:"error,omitempty"`
	ErrorRow   *int64           `json:"error_row,omitempty"`
	RowsRead   int64            `json:"rows_read"`
	Taken      int64            `json:"taken"`
	Duplicates int64            `json:"duplicates"` // of a recipient that the blast has
	Refused    int64            `json:"refused"`
	Reasons    map[string]int64 `json:"reasons"` // of the refused
	CreatedAt  time.Time        `json:"created_at"`
	UpdatedAt  time.Time        `json:"updated_at"`
	Detail     string           `json:"detail,omitempty"` // of the error, for people

	turn   int32
	digest []byte
}

// States of an upload.
const (
	UploadOpen   = "open"
	UploadDone   = "done"
	UploadFailed = "failed"
)

// BadRow is a row that was not taken; what stood in it is not kept.
type BadRow struct {
	Row    int64  `json:"row"` // the header of a CSV is row 1
	Column string `json:"column,omitempty"`
	Reason string `json:"reason"`
}

const uploadColumns = `blast_id, upload_id, state, error, error_row, rows_read, taken, duplicates, refused, reasons, created_at, updated_at, turn, digest`

func (u *Upload) fields() []any {
	return []any{&u.BlastID, &u.UploadID, &u.State, &u.Error, &u.ErrorRow, &u.RowsRead, &u.Taken, &u.Duplicates, &u.Refused, &u.Reasons,
		&u.CreatedAt, &u.UpdatedAt, &u.turn, &u.digest}
}

// Upload reads a file of recipients into a draft, chunk by chunk, each in a
// transaction with the place that it has come to. Where it breaks off, the same
// file under the same id goes on behind that place. An error of the file itself
// is in the upload's answer; the rows before it stay taken. An upload that has
// ended says again what it was, of the same file; of another, or of one whose
// columns become something else, it is refused as upload_differs. progress may
// be nil.
func (s *Store) Upload(ctx context.Context, tenant, id, upload uuid.UUID, f File, body io.Reader, progress func(Upload)) (*Upload, error) {
	u, err := s.openUpload(ctx, tenant, id, upload)
	if err != nil {
		return nil, err
	}
	in := &intake{store: s, tenant: tenant, upload: u, sum: sha256.New(), progress: progress}
	if u.State != UploadOpen {
		if err := in.repeats(f, body); err != nil {
			return nil, said("compare a file of recipients", err)
		}
		return u, nil
	}
	err = in.run(ctx, f, body)
	var bad *FileError
	if errors.As(err, &bad) {
		return s.endUpload(ctx, u, UploadFailed, bad)
	}
	if err != nil {
		return nil, said("take recipients", err)
	}
	return s.endUpload(ctx, u, UploadDone, nil)
}

// openUpload begins an upload, or takes it over from a connection that broke
// off; one that has ended stays as it is.
func (s *Store) openUpload(ctx context.Context, tenant, id, upload uuid.UUID) (*Upload, error) {
	var u Upload
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		b, err := read(ctx, tx, tenant, id, "FOR UPDATE")
		if err != nil {
			return err
		}
		err = tx.QueryRow(ctx, `UPDATE messaging.blast_uploads SET turn = turn + CASE WHEN state = 'open' THEN 1 ELSE 0 END, updated_at = CASE WHEN state = 'open' THEN now() ELSE updated_at END
WHERE blast_id = $1 AND upload_id = $2 RETURNING `+uploadColumns, id, upload).Scan(u.fields()...)
		if err == nil && u.State != UploadOpen {
			return nil
		}
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if err := takesUploads(b); err != nil {
			return err
		}
		if err == nil {
			return nil
		}
		var n int
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM messaging.blast_uploads WHERE blast_id = $1`, id).Scan(&n); err != nil {
			return err
		}
		if n >= maxUploads {
			return refuseState("too_many_uploads", fmt.Sprintf("A blast takes at most %d files.", maxUploads))
		}
		return tx.QueryRow(ctx, `INSERT INTO messaging.blast_uploads (blast_id, upload_id, state) VALUES ($1, $2, 'open') RETURNING `+uploadColumns, id, upload).Scan(u.fields()...)
	})
	if err != nil {
		return nil, said("open an upload", err)
	}
	return u.shown(), nil
}

func takesUploads(b *Blast) error {
	switch {
	case b.State != Draft:
		return refuseState("not_a_draft", "Recipients are added to a draft; this blast is "+b.State+".")
	case b.Audience.Type != FromUpload:
		return refuseState("audience_is_contacts", "The audience of this blast is its tenant's contacts.")
	}
	return nil
}

func (u *Upload) shown() *Upload {
	u.CreatedAt, u.UpdatedAt = u.CreatedAt.UTC(), u.UpdatedAt.UTC()
	if u.Reasons == nil {
		u.Reasons = map[string]int64{}
	}
	return u
}

// intake is a file on its way in.
type intake struct {
	store    *Store
	tenant   uuid.UUID
	upload   *Upload
	sum      hash.Hash // of what the columns become, and of the rows so far
	read     int64
	progress func(Upload)
}

func (in *intake) run(ctx context.Context, f File, body io.Reader) error {
	rows, err := f.open(body)
	if err != nil {
		return err
	}
	if err := in.skip(rows); err != nil {
		return err
	}
	for {
		chunk, end := in.chunk(rows)
		if len(chunk) > 0 {
			if err := in.take(ctx, chunk); err != nil {
				return err
			}
			if in.progress != nil {
				in.progress(*in.upload)
			}
		}
		if errors.Is(end, io.EOF) {
			return nil
		}
		if end != nil {
			return end
		}
	}
}

// repeats reads a file whose upload has ended, and sees that it is the same: the
// rows, what their columns become, and the end, be it the file's own or the row
// at which it fails.
func (in *intake) repeats(f File, body io.Reader) error {
	rows, err := f.open(body)
	if err == nil {
		err = in.skip(rows)
	}
	if err == nil {
		_, err = rows.next()
	}
	var bad *FileError
	u := in.upload
	switch {
	case err == nil:
		return refuseState("upload_differs", "The file is longer than the one that was taken under this upload_id; "+anotherID)
	case errors.Is(err, io.EOF) && u.State == UploadDone:
		return nil
	case errors.As(err, &bad) && u.State == UploadFailed && bad.Code == *u.Error && bad.Row == *u.ErrorRow:
		u.Detail = bad.Detail
		return nil
	case errors.As(err, &bad), errors.Is(err, io.EOF):
		return refuseState("upload_differs", "This file does not end as the one that was taken under this upload_id; "+anotherID)
	}
	return err
}

const anotherID = "give it an upload_id of its own."

// skip passes over what an earlier connection has brought, and sees that it is
// the same file.
func (in *intake) skip(rows rowReader) error {
	_, _ = in.sum.Write(rows.becomes()) // a hash takes everything
	for in.read < in.upload.RowsRead {
		r, err := rows.next()
		if errors.Is(err, io.EOF) {
			return refuseState("upload_differs", "The file is shorter than what was taken under this upload_id; "+anotherID)
		}
		if err != nil {
			return err
		}
		in.note(r)
	}
	if in.read > 0 && !bytes.Equal(in.sum.Sum(nil), in.upload.digest) {
		return refuseState("upload_differs", "This is another file than the one that was begun under this upload_id, or its columns become something else; "+anotherID)
	}
	return nil
}

func (in *intake) note(r *row) {
	in.read++
	_, _ = fmt.Fprintf(in.sum, "%d:", len(r.raw))
	_, _ = in.sum.Write(r.raw)
}

// chunk reads the rows of one transaction; end says why there are no more.
func (in *intake) chunk(rows rowReader) (chunk []*row, end error) {
	for size := 0; len(chunk) < uploadChunk && size < uploadChunkBytes; {
		r, err := rows.next()
		if err != nil {
			return chunk, err
		}
		in.note(r)
		size += len(r.raw) + 200
		r.raw = nil
		chunk = append(chunk, r)
	}
	return chunk, nil
}

// take writes a chunk, with the place that the file has come to.
func (in *intake) take(ctx context.Context, chunk []*row) error {
	next := *in.upload
	err := pgx.BeginFunc(ctx, in.store.pool, func(tx pgx.Tx) error {
		b, err := read(ctx, tx, in.tenant, in.upload.BlastID, "FOR UPDATE")
		if err != nil {
			return err
		}
		if err := takesUploads(b); err != nil {
			return err
		}
		next = *in.upload
		next.Reasons = map[string]int64{}
		for k, v := range in.upload.Reasons {
			next.Reasons[k] = v
		}
		next.RowsRead, next.digest = in.read, in.sum.Sum(nil)
		fit, err := resolve(ctx, tx, b, chunk)
		if err != nil {
			return err
		}
		if b.Recipients+int64(len(fit)) > MaxRecipients {
			return refuseState("too_many_recipients", fmt.Sprintf("A blast has at most %d recipients.", MaxRecipients))
		}
		taken, err := addRecipients(ctx, tx, b, fit)
		if err != nil {
			return err
		}
		next.Taken += int64(taken)
		next.Duplicates += int64(len(fit) - taken)
		if err := next.refuse(ctx, tx, chunk); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE messaging.blasts SET recipients = $2, updated_at = now() WHERE blast_id = $1`, b.ID, b.Recipients); err != nil {
			return err
		}
		return next.write(ctx, tx)
	})
	if err == nil {
		*in.upload = next
	}
	return err
}

// write keeps the place of an upload, unless another connection has taken it
// over.
func (u *Upload) write(ctx context.Context, tx pgx.Tx) error {
	const sql = `UPDATE messaging.blast_uploads SET rows_read = $4, digest = $5, taken = $6, duplicates = $7, refused = $8, reasons = $9, updated_at = now()
WHERE blast_id = $1 AND upload_id = $2 AND turn = $3 AND state = 'open'`
	tag, err := tx.Exec(ctx, sql, u.BlastID, u.UploadID, u.turn, u.RowsRead, u.digest, u.Taken, u.Duplicates, u.Refused, u.Reasons)
	if err == nil && tag.RowsAffected() == 0 {
		return refuseState("upload_taken_over", "Another connection brings this file now.")
	}
	return err
}

// refuse counts the rows that cannot be taken, and lists the first of them.
func (u *Upload) refuse(ctx context.Context, tx pgx.Tx, chunk []*row) error {
	var rows []int64
	var cols, reasons []string
	for _, r := range chunk {
		if r.reason == "" {
			continue
		}
		if u.Refused < keptBadRows {
			rows, cols, reasons = append(rows, r.n), append(cols, r.col), append(reasons, r.reason)
		}
		u.Refused++
		u.Reasons[r.reason]++
	}
	if len(rows) == 0 {
		return nil
	}
	const sql = `INSERT INTO messaging.blast_upload_rows (blast_id, upload_id, row, col, reason) SELECT $1, $2, * FROM unnest($3::bigint[], $4::text[], $5::text[])`
	_, err := tx.Exec(ctx, sql, u.BlastID, u.UploadID, rows, cols, reasons)
	return err
}

func (s *Store) endUpload(ctx context.Context, u *Upload, state string, bad *FileError) (*Upload, error) {
	var code *string
	var row *int64
	if bad != nil {
		code, row = &bad.Code, &bad.Row
	}
	const sql = `UPDATE messaging.blast_uploads SET state = $4, error = $5, error_row = $6, updated_at = now()
WHERE blast_id = $1 AND upload_id = $2 AND turn = $3 RETURNING ` + uploadColumns
	var out Upload
	err := s.pool.QueryRow(ctx, sql, u.BlastID, u.UploadID, u.turn, state, code, row).Scan(out.fields()...)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, refuseState("upload_taken_over", "Another connection brings this file now.")
	}
	if err != nil {
		return nil, fmt.Errorf("end an upload: %w", err)
	}
	if bad != nil {
		out.Detail = bad.Detail
	}
	return out.shown(), nil
}

// Uploaded reads how far an upload has come, and up to limit of its bad rows
// behind one.
func (s *Store) Uploaded(ctx context.Context, tenant, id, upload uuid.UUID, behind int64, limit int) (*Upload, []BadRow, error) {
	if _, err := read(ctx, s.pool, tenant, id, ""); err != nil {
		return nil, nil, err
	}
	var u Upload
	err := s.pool.QueryRow(ctx, `SELECT `+uploadColumns+` FROM messaging.blast_uploads WHERE blast_id = $1 AND upload_id = $2`, id, upload).Scan(u.fields()...)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil, ErrNone
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read an upload: %w", err)
	}
	rows, err := s.pool.Query(ctx, `SELECT row, col, reason FROM messaging.blast_upload_rows WHERE blast_id = $1 AND upload_id = $2 AND row > $3 ORDER BY row LIMIT $4`, id, upload, behind, limit)
	if err != nil {
		return nil, nil, fmt.Errorf("read an upload's bad rows: %w", err)
	}
	bad, err := pgx.CollectRows(rows, pgx.RowToStructByPos[BadRow])
	if err != nil {
		return nil, nil, fmt.Errorf("read an upload's bad rows: %w", err)
	}
	return u.shown(), bad, nil
}
