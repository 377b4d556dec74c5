package storage

import (
	"bytes"
	"context"
	"crypto/md5" //nolint:gosec // S3's own check of a request's body
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// s3 is a Store over a bucket.
type s3 struct {
	cfg       Config
	core      minio.Core
	transport *http.Transport
	at        bucket
}

// bucket is what an s3:// URL says.
type bucket struct {
	name, prefix     string // the prefix ends with / where there is one
	host, region     string
	secure, pathOnly bool
}

func (c Config) bucket(u *url.URL) (bucket, error) {
	b := bucket{name: u.Host, host: "s3.amazonaws.com", region: "us-east-1", secure: true}
	if p := strings.Trim(u.Path, "/"); p != "" {
		if err := checkName(p); err != nil {
			return b, fmt.Errorf("%w: %w", ErrURL, err)
		}
		b.prefix = p + "/"
	}
	if b.name == "" {
		return b, fmt.Errorf("%w: an S3 URL is s3://bucket/prefix?endpoint=…", ErrURL)
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return b, fmt.Errorf("%w: its parameters cannot be read", ErrURL)
	}
	for name, values := range q {
		switch value := values[len(values)-1]; name {
		case "region":
			b.region = value
		case "path_style":
			if b.pathOnly, err = strconv.ParseBool(value); err != nil {
				return b, fmt.Errorf("%w: path_style is true or false", ErrURL)
			}
		case "endpoint":
			e, err := url.Parse(value)
			if err != nil || e.Host == "" || e.User != nil || strings.Trim(e.Path, "/") != "" || e.Scheme != "http" && e.Scheme != "https" {
				return b, fmt.Errorf("%w: endpoint is http://host:port or https://host:port", ErrURL)
			}
			b.host, b.secure = e.Host, e.Scheme == "https"
		default:
			return b, fmt.Errorf("%w: it knows endpoint, region and path_style, not %q", ErrURL, name)
		}
	}
	return b, nil
}

func (c Config) openS3(u *url.URL) (Store, error) {
	b, err := c.bucket(u)
	if err != nil {
		return nil, err
	}
	transport, err := minio.DefaultTransport(b.secure)
	if err != nil {
		return nil, fmt.Errorf("prepare connections to S3: %w", err)
	}
	transport.ResponseHeaderTimeout = c.Stall
	creds := credentials.NewStaticV4(c.AccessKey, c.SecretKey, "")
	if c.AccessKey == "" {
		creds = credentials.NewChainCredentials([]credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{}})
	}
	lookup := minio.BucketLookupAuto
	if b.pathOnly {
		lookup = minio.BucketLookupPath
	}
	core, err := minio.NewCore(b.host, &minio.Options{Creds: creds, Secure: b.secure, Region: b.region, BucketLookup: lookup, Transport: transport, MaxRetries: 4})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrURL, err)
	}
	return &s3{cfg: c, core: *core, transport: transport, at: b}, nil
}

func (s *s3) String() string {
	return strings.TrimSuffix("s3://"+s.at.name+"/"+s.at.prefix, "/")
}

func (s *s3) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}

func (s *s3) key(name string) string { return s.at.prefix + name }

// classOf makes of a server's answer what callers ask for.
func classOf(err error) error {
	if err == nil {
		return nil
	}
	r := minio.ToErrorResponse(err)
	switch {
	case r.Code == minio.NoSuchKey || r.Code == "NotFound" || r.StatusCode == http.StatusNotFound && r.Code != minio.NoSuchBucket && r.Code != "NoSuchUpload":
		return ErrNotFound
	case r.Code == "PreconditionFailed" || r.StatusCode == http.StatusPreconditionFailed:
		return ErrExists
	}
	return err
}

func (s *s3) Stat(ctx context.Context, name string) (Info, error) {
	o, err := s.stat(ctx, name)
	if err != nil {
		return Info{}, fmt.Errorf("look at %s: %w", name, err)
	}
	return s.info(o), nil
}

func (s *s3) stat(ctx context.Context, name string) (minio.ObjectInfo, error) {
	if err := checkName(name); err != nil {
		return minio.ObjectInfo{}, err
	}
	o, err := s.core.StatObject(ctx, s.at.name, s.key(name), minio.StatObjectOptions{})
	return o, classOf(err)
}

func (s *s3) info(o minio.ObjectInfo) Info {
	i := Info{Name: strings.TrimPrefix(o.Key, s.at.prefix), Size: o.Size, Modified: o.LastModified}
	if tag := strings.Trim(o.ETag, `"`); tag != "" {
		i.Digest = "etag:" + tag
	}
	return i
}

func (s *s3) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		for o := range s.core.ListObjectsIter(ctx, s.at.name, minio.ListObjectsOptions{Prefix: s.key(prefix), Recursive: true}) {
			if o.Err != nil {
				yield(Info{}, fmt.Errorf("list %s: %w", prefix, classOf(o.Err)))
				return
			}
			if strings.HasSuffix(o.Key, "/") { // some servers make objects of folders
				continue
			}
			if !yield(s.info(o), nil) {
				return
			}
		}
		if ctx.Err() != nil {
			yield(Info{}, fmt.Errorf("list %s: %w", prefix, ctx.Err()))
		}
	}
}

func (s *s3) Delete(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if err := classOf(s.core.RemoveObject(ctx, s.at.name, s.key(name), minio.RemoveObjectOptions{})); err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	return nil
}

func (s *s3) Replace(ctx context.Context, name string, body []byte) error {
	if err := checkName(name); err != nil {
		return err
	}
	_, err := s.core.PutObject(ctx, s.at.name, s.key(name), bytes.NewReader(body), int64(len(body)), sum(body), "", minio.PutObjectOptions{})
	if err != nil {
		return fmt.Errorf("replace %s: %w", name, err)
	}
	return nil
}

func (s *s3) Sweep(ctx context.Context, prefix string, before time.Time) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for u := range s.core.ListIncompleteUploads(ctx, s.at.name, s.key(prefix), true) {
		if u.Err != nil {
			return fmt.Errorf("list unfinished uploads: %w", u.Err)
		}
		if !u.Initiated.Before(before) {
			continue
		}
		if err := s.core.AbortMultipartUpload(ctx, s.at.name, u.Key, u.UploadID); err != nil && minio.ToErrorResponse(err).Code != "NoSuchUpload" {
			return fmt.Errorf("give up an unfinished upload: %w", err)
		}
	}
	return ctx.Err()
}

func (s *s3) Link(ctx context.Context, name string, ttl time.Duration) (string, error) {
	if err := checkName(name); err != nil {
		return "", err
	}
	as := url.Values{"response-content-disposition": {`attachment; filename="` + path.Base(name) + `"`}}
	u, err := s.core.PresignedGetObject(ctx, s.at.name, s.key(name), ttl, as)
	if err != nil {
		return "", fmt.Errorf("link %s: %w", name, err)
	}
	return u.String(), nil
}

func (s *s3) Open(ctx context.Context, name string) (io.ReadSeekCloser, error) {
	i, err := s.Stat(ctx, name)
	if err != nil {
		return nil, err
	}
	return &s3Reader{s: s, ctx: ctx, name: name, info: i}, nil
}

// s3Reader reads one state of an object, as of its Stat. A seek costs a request
// at the next read; a read that stands still ends.
type s3Reader struct {
	s    *s3
	ctx  context.Context //nolint:containedctx // io.Reader takes none
	name string
	info Info
	at   int64

	body   io.ReadCloser
	cancel context.CancelFunc
}

func (r *s3Reader) Read(p []byte) (int, error) {
	if r.at >= r.info.Size {
		return 0, io.EOF
	}
	if err := r.request(); err != nil {
		return 0, fmt.Errorf("read %s: %w", r.name, err)
	}
	stalled := time.AfterFunc(r.s.cfg.Stall, r.cancel)
	n, err := r.body.Read(p)
	inTime := stalled.Stop()
	r.at += int64(n)
	switch {
	case err == nil || r.at >= r.info.Size && errors.Is(err, io.EOF):
		return n, nil // the next Read says EOF
	case !inTime && r.ctx.Err() == nil:
		err = fmt.Errorf("nothing came for %s", r.s.cfg.Stall)
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return n, fmt.Errorf("read %s: %w", r.name, err)
}

func (r *s3Reader) request() error {
	if r.body != nil {
		return nil
	}
	var opts minio.GetObjectOptions
	if r.at > 0 {
		if err := opts.SetRange(r.at, 0); err != nil {
			return err
		}
	}
	if tag, ok := strings.CutPrefix(r.info.Digest, "etag:"); ok {
		if err := opts.SetMatchETag(tag); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(r.ctx)
	body, _, _, err := r.s.core.GetObject(ctx, r.s.at.name, r.s.key(r.name), opts)
	if err != nil {
		cancel()
		return classOf(err)
	}
	r.body, r.cancel = body, cancel
	return nil
}

func (r *s3Reader) Seek(offset int64, whence int) (int64, error) {
	at := offset
	switch whence {
	case io.SeekCurrent:
		at += r.at
	case io.SeekEnd:
		at += r.info.Size
	}
	if at < 0 {
		return 0, fmt.Errorf("seek in %s: before its start", r.name)
	}
	if at != r.at {
		_ = r.Close()
		r.at = at
	}
	return at, nil
}

func (r *s3Reader) Close() error {
	if r.body == nil {
		return nil
	}
	r.cancel()
	body := r.body
	r.body = nil
	_ = body.Close() // a body that was not read to its end has nothing to say
	return nil
}

func sum(b []byte) string {
	m := md5.Sum(b) //nolint:gosec // S3's own check of a request's body
	return base64.StdEncoding.EncodeToString(m[:])
}

// nonce tells a writer's object from another's.
func nonce() string { return rand.Text() }
