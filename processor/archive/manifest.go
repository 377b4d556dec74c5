package archive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/internal/storage"
)

// manifestFormat is the first member of every manifest; another number means
// other members.
const manifestFormat = "carril-export/1"

// manifestName stands in the folder of the objects that it names.
const manifestName = "manifest.json"

// Manifest says what an export holds. It is written last: without it there is
// no export.
type Manifest struct {
	Format string `json:"format"`
	Kind   string `json:"kind"` // leaf: retention's; request: a tenant's
	// A leaf's.
	Parent          string     `json:"parent,omitempty"`
	Table           string     `json:"table,omitempty"`
	LeafOID         uint32     `json:"leaf_oid,omitempty"`
	Run             *uuid.UUID `json:"run,omitempty"`
	RetentionMonths int        `json:"retention_months,omitempty"`
	// A request's.
	ExportID *uuid.UUID `json:"export_id,omitempty"`
	TenantID *uuid.UUID `json:"tenant_id,omitempty"`

	From        time.Time   `json:"from"`
	To          time.Time   `json:"to"` // excluded
	DataFormat  string      `json:"data_format"`
	Compression Compression `json:"compression"`
	Rows        int64       `json:"rows"`
	Bytes       int64       `json:"bytes"`            // of all objects, as they are stored
	Digest      string      `json:"digest,omitempty"` // of all rows, whatever their order; NDJSON alone
	CreatedAt   time.Time   `json:"created_at"`
	Rewrites    int         `json:"rewrites,omitempty"` // erasures that changed it
	RewrittenAt *time.Time  `json:"rewritten_at,omitempty"`
	Objects     []Object    `json:"objects"`
}

// Object is one object of a manifest.
type Object struct {
	Name          string     `json:"name"` // beside the manifest
	TenantID      *uuid.UUID `json:"tenant_id,omitempty"`
	From          *time.Time `json:"from,omitempty"` // a request's part
	To            *time.Time `json:"to,omitempty"`
	Rows          int64      `json:"rows"`
	Digest        string     `json:"digest,omitempty"`
	Bytes         int64      `json:"bytes"`
	SHA256        string     `json:"sha256"` // of the object as it is stored: sha256sum
	ContentBytes  int64      `json:"content_bytes,omitempty"`
	ContentSHA256 string     `json:"content_sha256,omitempty"` // of its lines: zstd -dc | sha256sum
	StorageDigest string     `json:"storage_digest,omitempty"` // the server's own
}

// dir is the folder of a leaf's export: it names the leaf for people, and by its
// oid and the run for good.
func (l Leaf) dir() string {
	return fmt.Sprintf("retention/%s/%s/r%d/oid-%d/run-%s", l.Parent, l.From.UTC().Format("2006-01"), l.RetentionMonths, l.OID, l.Run)
}

// attempt tells the objects of one attempt from another's.
func attempt() string { return strings.ReplaceAll(uuid.NewString(), "-", "")[:12] }

// total counts what the objects come to.
func (m *Manifest) total() error {
	var d Digest
	m.Rows, m.Bytes = 0, 0
	for _, o := range m.Objects {
		m.Rows, m.Bytes = m.Rows+o.Rows, m.Bytes+o.Bytes
		if o.Digest == "" {
			continue
		}
		one, err := parseDigest(o.Rows, o.Digest)
		if err != nil {
			return err
		}
		d.Add(one)
	}
	if m.DataFormat == FormatNDJSON {
		m.Digest = d.String()
	}
	return nil
}

// named are the names that belong to the export, the manifest's own among them.
func (m *Manifest) named(name string) map[string]bool {
	all := map[string]bool{name: true}
	for _, o := range m.Objects {
		all[path.Join(path.Dir(name), o.Name)] = true
	}
	return all
}

func (m *Manifest) encode() ([]byte, error) {
	b, err := json.MarshalIndent(m, "", "  ")
	return append(b, '\n'), err
}

// maxManifest bounds what is read of one: a million objects.
const maxManifest = 512 << 20

// ReadManifest reads a manifest; storage.ErrNotFound where there is none.
func ReadManifest(ctx context.Context, s storage.Store, name string) (*Manifest, error) {
	r, err := s.Open(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read a manifest: %w", err)
	}
	defer r.Close()
	var m Manifest
	if err := json.NewDecoder(io.LimitReader(r, maxManifest)).Decode(&m); err != nil {
		return nil, fmt.Errorf("read manifest %s: %w", name, err)
	}
	if m.Format != manifestFormat {
		return nil, fmt.Errorf("%w: manifest %s has format %q", ErrCorrupt, name, m.Format)
	}
	return &m, nil
}

// createManifest makes an export out of its objects; the one that another
// attempt has made meanwhile counts.
func createManifest(ctx context.Context, s storage.Store, name string, m *Manifest) (*Manifest, error) {
	b, err := m.encode()
	if err != nil {
		return nil, err
	}
	w, err := s.Create(ctx, name)
	if err == nil {
		defer w.Abort()
		if _, err = w.Write(b); err == nil {
			_, err = w.Commit()
		}
	}
	if errors.Is(err, storage.ErrExists) {
		return ReadManifest(ctx, s, name)
	}
	if err != nil {
		return nil, fmt.Errorf("write a manifest: %w", err)
	}
	return m, nil
}
