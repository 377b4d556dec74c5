package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/minio/minio-go/v7"
)

// mark is the metadata that tells a writer's object from another's: an answer
// that was lost makes the client ask again, and be refused by its own object.
const mark = "Carril-Writer"

// maxParts is S3's limit of parts of one object.
const maxParts = 10_000

// Create holds one part in memory: an object that fits into one is put at once,
// a longer one goes as a multipart upload, which is nothing until it is complete.
func (s *s3) Create(ctx context.Context, name string) (Writer, error) {
	if _, err := s.Stat(ctx, name); err == nil {
		return nil, fmt.Errorf("create %s: %w", name, ErrExists)
	} else if !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	return &s3Writer{s: s, ctx: ctx, name: name, nonce: nonce()}, nil
}

type s3Writer struct {
	s      *s3
	ctx    context.Context //nolint:containedctx // io.Writer takes none
	name   string
	nonce  string
	part   bytes.Buffer
	upload string // empty: no part has left yet
	parts  []minio.CompletePart
	done   bool
}

func (w *s3Writer) options() minio.PutObjectOptions {
	return minio.PutObjectOptions{UserMetadata: map[string]string{mark: w.nonce}, ContentType: "application/octet-stream"}
}

func (w *s3Writer) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		k := min(len(p), w.s.cfg.PartBytes-w.part.Len())
		w.part.Write(p[:k])
		n, p = n+k, p[k:]
		if w.part.Len() == w.s.cfg.PartBytes {
			if err := w.send(); err != nil {
				return n, fmt.Errorf("write %s: %w", w.name, err)
			}
		}
	}
	return n, nil
}

// send uploads the part that is in memory.
func (w *s3Writer) send() (err error) {
	if len(w.parts) == maxParts {
		return ErrTooLarge
	}
	if w.upload == "" {
		if w.upload, err = w.s.core.NewMultipartUpload(w.ctx, w.s.at.name, w.s.key(w.name), w.options()); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(w.ctx, partTimeout(w.s.cfg))
	defer cancel()
	p, err := w.s.core.PutObjectPart(ctx, w.s.at.name, w.s.key(w.name), w.upload, len(w.parts)+1, bytes.NewReader(w.part.Bytes()), int64(w.part.Len()),
		minio.PutObjectPartOptions{Md5Base64: sum(w.part.Bytes())})
	if err != nil {
		return err
	}
	w.parts = append(w.parts, minio.CompletePart{PartNumber: p.PartNumber, ETag: p.ETag})
	w.part.Reset()
	return nil
}

// partTimeout bounds an upload whose server takes nothing: the header's timeout
// begins only after the body. 64 KiB a second is the least that goes.
func partTimeout(c Config) time.Duration {
	return c.Stall + time.Duration(c.PartBytes/(64<<10))*time.Second
}

// Commit asks the server to refuse a name that is taken. A server that does not
// know the condition ignores it, or says so: then the look just before is all
// there is.
func (w *s3Writer) Commit() (Info, error) {
	defer w.Abort()
	if _, err := w.s.stat(w.ctx, w.name); err == nil {
		return Info{}, fmt.Errorf("commit %s: %w", w.name, ErrExists)
	} else if !errors.Is(err, ErrNotFound) {
		return Info{}, fmt.Errorf("commit %s: %w", w.name, err)
	}
	if w.upload != "" && w.part.Len() > 0 {
		if err := w.send(); err != nil {
			return Info{}, fmt.Errorf("commit %s: %w", w.name, err)
		}
	}
	opts := w.options()
	opts.SetMatchETagExcept("*")
	err := w.finish(opts)
	if minio.ToErrorResponse(err).StatusCode == http.StatusNotImplemented {
		err = w.finish(w.options())
	}
	// Whatever the answer was: is this object there now?
	o, serr := w.s.stat(w.ctx, w.name)
	mine := serr == nil && o.UserMetadata[mark] == w.nonce
	switch {
	case mine:
		w.done = true
		return w.s.info(o), nil
	case err == nil && serr == nil && len(o.UserMetadata) == 0: // a server that keeps no metadata
		w.done = true
		return w.s.info(o), nil
	case err == nil && serr == nil:
		err = ErrExists
	case err == nil:
		err = serr
	}
	return Info{}, fmt.Errorf("commit %s: %w", w.name, classOf(err))
}

func (w *s3Writer) finish(opts minio.PutObjectOptions) (err error) {
	ctx, cancel := context.WithTimeout(w.ctx, partTimeout(w.s.cfg))
	defer cancel()
	if w.upload == "" {
		_, err = w.s.core.PutObject(ctx, w.s.at.name, w.s.key(w.name), bytes.NewReader(w.part.Bytes()), int64(w.part.Len()), sum(w.part.Bytes()), "", opts)
		return err
	}
	opts.UserMetadata, opts.ContentType = nil, "" // they were said at the start
	_, err = w.s.core.CompleteMultipartUpload(ctx, w.s.at.name, w.s.key(w.name), w.upload, w.parts, opts)
	return err
}

// Abort has a moment of its own: it is called when the context has ended, too.
func (w *s3Writer) Abort() {
	if w.done {
		return
	}
	w.done = true
	w.part = bytes.Buffer{}
	if w.upload == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), 5*time.Second)
	defer cancel()
	_ = w.s.core.AbortMultipartUpload(ctx, w.s.at.name, w.s.key(w.name), w.upload) // what stays is swept later
}

var _ io.Writer = (*s3Writer)(nil)
