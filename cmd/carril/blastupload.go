package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/dispatcher/blast"
	"github.com/softcrum/carril/internal/bench"
)

type blastUploadCmd struct {
	blastOf
	File      string            `arg:"" help:"CSV or NDJSON, gzip or not; - reads standard input."`
	Format    string            `default:"" enum:",csv,ndjson" help:"csv or ndjson; by the file's name when empty, else csv."`
	Delimiter string            `default:"" enum:",comma,semicolon,tab" help:"comma, semicolon or tab; found out when empty."`
	Columns   map[string]string `mapsep:";" help:"What columns become: 'Correo=address;Nombre=name;Notas='. An empty one is left out."`
	UploadID  uuid.UUID         `name:"upload-id" help:"Of the file, the same for every try; it follows from the file when empty."`
}

func (blastUploadCmd) Help() string {
	return `A column contact_id, external_id or address (or email, phone) says who; every other
column becomes a variable. Rows that name nobody known are counted and listed with
their number and reason. A file that broke off is given again: what was taken is
passed over.`
}

func (c blastUploadCmd) Run(e *environment) error {
	f := blast.File{Format: c.Format, Columns: c.Columns, Delimiter: map[string]string{"comma": ",", "semicolon": ";", "tab": "\t"}[c.Delimiter]}
	if name := strings.TrimSuffix(c.File, ".gz"); f.Format == "" {
		f.Format = blast.CSV
		if strings.HasSuffix(name, ".ndjson") || strings.HasSuffix(name, ".jsonl") {
			f.Format = blast.NDJSON
		}
	}
	in, size, changed := io.Reader(os.Stdin), int64(0), time.Time{}
	if c.File != "-" {
		file, err := os.Open(c.File)
		if err != nil {
			return fmt.Errorf("%w: %w", app.ErrConfig, err)
		}
		defer file.Close()
		if info, err := file.Stat(); err == nil {
			size, changed = info.Size(), info.ModTime()
		}
		in = file
	}
	if c.UploadID == uuid.Nil {
		c.UploadID = uploadID(c.File, changed)
	}
	return c.do(e, func(ctx context.Context, s *blast.Store, tenant uuid.UUID) error {
		u, err := c.upload(ctx, e, s, tenant, f, in, size)
		if err != nil {
			return err
		}
		_, bad, err := s.Uploaded(ctx, tenant, c.Blast, c.UploadID, 0, 20)
		if err != nil {
			return err
		}
		return c.print(e, u, bad)
	})
}

// uploadID makes the id of a file by its path and when it was changed: the same
// when the command is given again, another once somebody has mended the file.
// What comes from standard input is new each time.
func uploadID(path string, changed time.Time) uuid.UUID {
	if path == "-" {
		return uuid.New()
	}
	if full, err := filepath.Abs(path); err == nil {
		path = full
	}
	return uuid.NewSHA1(uuid.NameSpaceURL, fmt.Appendf(nil, "file:%s@%d", path, changed.UnixNano()))
}

func (c blastUploadCmd) upload(ctx context.Context, e *environment, s *blast.Store, tenant uuid.UUID, f blast.File, in io.Reader, size int64) (*blast.Upload, error) {
	var read, rows atomic.Int64
	fraction := func() float64 { return float64(read.Load()) / float64(size) }
	if size == 0 {
		fraction = nil
	}
	end := bench.NewProgress(e.err).Phase("recipients of "+filepath.Base(c.File), fraction)
	u, err := s.Upload(ctx, tenant, c.Blast, c.UploadID, f, &counting{in, &read}, func(u blast.Upload) { rows.Store(u.RowsRead) })
	end()
	if err != nil && rows.Load() > 0 {
		fmt.Fprintf(e.err, "%d rows are taken in; the same command goes on behind them\n", rows.Load())
	}
	return u, err
}

// counting counts what is read.
type counting struct {
	from io.Reader
	n    *atomic.Int64
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.n.Add(int64(n))
	return n, err
}

func (c blastUploadCmd) print(e *environment, u *blast.Upload, bad []blast.BadRow) error {
	if c.JSON {
		if err := e.indented(map[string]any{"upload": u, "bad_rows": bad}); err != nil {
			return err
		}
	} else {
		w := tabwriter.NewWriter(e.out, 0, 4, 2, ' ', 0)
		fmt.Fprintf(w, "rows\t%d\ntaken\t%d\nduplicates\t%d\nnot taken\t%d\n", u.RowsRead, u.Taken, u.Duplicates, u.Refused)
		for _, why := range slices.Sorted(maps.Keys(u.Reasons)) {
			fmt.Fprintf(w, "  %s\t%d\n", why, u.Reasons[why])
		}
		for _, r := range bad {
			fmt.Fprintf(w, "row %d\t%s\t%s\n", r.Row, r.Reason, r.Column)
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	if u.State == blast.UploadFailed {
		return fmt.Errorf("the file is not taken beyond row %d: %s: %s", *u.ErrorRow, *u.Error, u.Detail)
	}
	return nil
}
