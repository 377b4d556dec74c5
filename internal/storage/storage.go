// Package storage keeps whole objects under names that are never given twice:
// in a folder, or in a bucket of an S3-compatible server. It owns atomicity (an
// object is there whole or not at all, whatever dies while it is written), the
// rule that nothing is overwritten by Create, and what the server says of an
// object. What is in an object, and whether it is what was meant, is left to
// the callers: processor/archive and the management API.
package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net/url"
	"path"
	"strings"
	"time"
)

// Errors that callers tell apart with errors.Is.
var (
	ErrExists   = fmt.Errorf("object is there already: %w", fs.ErrExist)
	ErrNotFound = fmt.Errorf("no such object: %w", fs.ErrNotExist)
	ErrNoLink   = errors.New("this storage gives no links")
	ErrTooLarge = errors.New("object is larger than the server takes")
	ErrName     = errors.New("object name cannot be used")
	ErrURL      = errors.New("storage URL cannot be used")
)

// Info is what the storage says of an object.
type Info struct {
	Name     string // as it was created, without the storage's own prefix
	Size     int64  // bytes
	Modified time.Time
	// Digest is the server's own of the stored bytes, with its kind in front
	// ("etag:…"); empty where the storage has none. The same bytes under the same
	// name keep it.
	Digest string
}

// Store is a folder or a bucket. All methods may be called at once. Their errors
// name the object and never hold a credential.
type Store interface {
	// Create starts an object. ErrExists where the name is taken: at once, or at
	// Commit when another was faster. ctx bounds the whole of the writing.
	Create(ctx context.Context, name string) (Writer, error)
	// Open reads an object from its start; ErrNotFound. ctx bounds the reading. The
	// caller closes it.
	Open(ctx context.Context, name string) (io.ReadSeekCloser, error)
	// Stat asks the storage anew; ErrNotFound.
	Stat(ctx context.Context, name string) (Info, error)
	// List gives the objects whose names begin with prefix, which may end inside a
	// name, in the order of names. It ends after its first error.
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]
	// Delete removes an object; one that is not there is no error.
	Delete(ctx context.Context, name string) error
	// Replace puts a small object in the place of what has its name, if anything
	// has: readers see the old one or the new one. It is for the one who knows that
	// nobody else replaces it.
	Replace(ctx context.Context, name string, body []byte) error
	// Sweep removes what Creates that began before a time left unfinished below
	// prefix: a killed writer cleans nothing up.
	Sweep(ctx context.Context, prefix string, before time.Time) error
	// Link gives a URL that reads an object for ttl without a credential, saved as
	// the last part of its name; ErrNoLink where the storage serves nothing itself.
	Link(ctx context.Context, name string, ttl time.Duration) (string, error)
	// String names the storage for people; it holds no credential.
	String() string
	// Close lets go of connections and handles; harmless twice.
	Close() error
}

// Writer writes one object. It is used by one goroutine.
type Writer interface {
	io.Writer
	// Commit makes the object visible under its name, durably, and gives what the
	// storage says of it; ErrExists when the name was taken meanwhile. After an
	// error there is no such object, or, where a connection broke, a whole one.
	Commit() (Info, error)
	// Abort leaves nothing behind; harmless after Commit.
	Abort()
}

// Config of a storage.
type Config struct {
	// URL is file:///path, or s3://bucket/prefix with the parameters endpoint (a
	// URL; Amazon's own when absent), region (default us-east-1) and path_style
	// (true for servers that know no bucket by its host name; default false).
	URL string
	// AccessKey and SecretKey of S3; both empty: AWS_* variables, the AWS files or
	// the machine's role.
	AccessKey, SecretKey string
	// PartBytes is how much of an object of S3 is held in memory at a time; default
	// 16 MiB, at least 5 MiB.
	PartBytes int
	// Stall is how long a read or a request of S3 may stand still; default 1 min.
	Stall time.Duration
}

func (c Config) withDefaults() Config {
	if c.PartBytes == 0 {
		c.PartBytes = 16 << 20
	}
	if c.Stall == 0 {
		c.Stall = time.Minute
	}
	return c
}

// Validate says whether Open could use the URL, without connecting.
func (c Config) Validate() error {
	u, err := c.parse()
	if err != nil {
		return err
	}
	if u.Scheme == "s3" {
		_, err = c.bucket(u)
	}
	return err
}

// Open connects to nothing: a storage that is away shows at its first use. A
// folder is made where it is missing.
func Open(c Config) (Store, error) {
	u, err := c.parse()
	if err != nil {
		return nil, err
	}
	if u.Scheme == "file" {
		return openFolder(u.Path)
	}
	if (c.AccessKey == "") != (c.SecretKey == "") {
		return nil, fmt.Errorf("%w: an access key goes with its secret", ErrURL)
	}
	return c.withDefaults().openS3(u)
}

func (c Config) parse() (*url.URL, error) {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil: // its text would repeat the URL, and a credential with it
		return nil, fmt.Errorf("%w: it cannot be read", ErrURL)
	case u.User != nil:
		return nil, fmt.Errorf("%w: credentials have settings of their own", ErrURL)
	case c.PartBytes != 0 && c.PartBytes < 5<<20:
		return nil, fmt.Errorf("%w: parts of S3 have at least 5 MiB", ErrURL)
	case u.Scheme == "file" && (u.Host != "" || u.RawQuery != "" || !path.IsAbs(u.Path)):
		return nil, fmt.Errorf("%w: a folder is file:///absolute/path", ErrURL)
	case u.Scheme != "file" && u.Scheme != "s3":
		return nil, fmt.Errorf("%w: it begins with file:// or s3://", ErrURL)
	}
	return u, nil
}

// maxName is what both a file system and S3 take.
const maxName = 900

// checkName takes relative names of plain segments: the same in a folder, in a
// bucket and in a URL.
func checkName(name string) error {
	ok := name != "" && len(name) <= maxName
	for segment := range strings.SplitSeq(name, "/") {
		ok = ok && segment != "" && len(segment) <= 200 && segment[0] != '.' && strings.IndexFunc(segment, foreign) < 0
	}
	if !ok {
		return fmt.Errorf("%w: %q", ErrName, name)
	}
	return nil
}

func foreign(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.=", r))
}
