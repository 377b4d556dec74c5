// Package schemas owns what goes over the wire: the Avro schemas of every
// topic, the Go records that mirror them, the topics themselves, and the codec
// that frames a record the way Confluent's serializers do (magic byte 0, schema
// id in 4 bytes, Avro binary). Whoever produces or consumes a topic calls it.
//
// Typed records go through twmb/avro, which needs neither maps nor boxed
// values, and the hottest are written by hand; goavro reads what nobody has a type for, and checks the first in the
// tests.
package schemas

import (
	"context"
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/linkedin/goavro/v2"
	"github.com/twmb/avro"
	"github.com/twmb/franz-go/pkg/sr"
)

//go:embed avro/*.avsc
var files embed.FS

// ErrMalformed marks bytes that will never decode: no frame, an unknown schema
// id, another record's schema, truncated or trailing data. The record is a dead
// letter.
var ErrMalformed = errors.New("malformed record")

// ErrRegistryAway marks a registry that gave no answer; wait and try again.
var ErrRegistryAway = errors.New("schema registry unavailable")

// headerLen is the Confluent frame: magic byte and schema id.
const headerLen = 5

// negativeLife is how long an id that the registry does not know is not asked
// for again.
const negativeLife = 5 * time.Second

// Registry is the part of a Confluent-compatible registry that the codec asks;
// *sr.Client satisfies it.
type Registry interface {
	CreateSchema(ctx context.Context, subject string, s sr.Schema) (sr.SubjectSchema, error)
	SchemaByID(ctx context.Context, id int) (sr.Schema, error)
}

// Source gives the text of an embedded schema by its file name in avro/,
// without the ending.
func Source(name string) (string, error) {
	b, err := files.ReadFile("avro/" + name + ".avsc")
	if err != nil {
		return "", fmt.Errorf("no schema %q: %w", name, err)
	}
	return string(b), nil
}

// Codec frames and reads records. It is safe for concurrent use. Ids are asked
// for once and kept: a registry that is away later stops nothing that is known.
type Codec struct {
	reg    Registry
	prefix string

	readers map[string]*avro.Schema // by schema name

	mu       sync.RWMutex
	writers  map[string]writer   // topic without prefix -> what Encode needs
	resolved map[readKey]decoder // writer id and reader name -> decoder
	unknown  map[int]time.Time   // ids that the registry denied, and when
	generic  map[int]*goavro.Codec
}

// writer is our schema of a topic and its id in the registry.
type writer struct {
	id     int32
	schema *avro.Schema
}

// decoder reads what one version of a schema wrote as another.
type decoder struct {
	*avro.Schema
	same bool // both are one
}

type readKey struct {
	id   int
	name string
}

// NewCodec compiles the embedded schemas. prefix is the deployment's topic
// prefix, which subjects carry too.
func NewCodec(reg Registry, prefix string) (*Codec, error) {
	c := &Codec{
		reg: reg, prefix: prefix,
		readers:  map[string]*avro.Schema{},
		writers:  map[string]writer{},
		resolved: map[readKey]decoder{},
		unknown:  map[int]time.Time{},
		generic:  map[int]*goavro.Codec{},
	}
	for _, t := range Topics([]string{"email"}) {
		src, err := Source(t.Schema)
		if err != nil {
			return nil, err
		}
		s, err := avro.Parse(src)
		if err != nil {
			return nil, fmt.Errorf("parse schema %s: %w", t.Schema, err)
		}
		c.readers[t.Schema] = s
	}
	return c, nil
}

// Warm registers the schemas of the topics (or finds their ids), so that Encode
// never asks the registry on a hot path.
func (c *Codec) Warm(ctx context.Context, topics ...string) error {
	for _, t := range topics {
		if _, err := c.writer(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

// Encode appends the framed record for a topic (named without prefix) to dst.
func (c *Codec) Encode(ctx context.Context, dst []byte, topic string, record any) ([]byte, error) {
	w, err := c.writer(ctx, topic)
	if err != nil {
		return dst, err
	}
	dst = append(dst, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(w.id))
	if hot, ok := record.(interface{ appendAvro(b []byte) []byte }); ok {
		return hot.appendAvro(dst), nil
	}
	out, err := w.schema.AppendEncode(dst, record)
	if err != nil {
		return dst, fmt.Errorf("encode for %s: %w", topic, err)
	}
	return out, nil
}

// Decode reads a framed record of a topic into record, whatever version wrote
// it. The error is ErrMalformed or ErrRegistryAway.
func (c *Codec) Decode(ctx context.Context, topic string, data []byte, record any) error {
	name, ok := schemaOf(topic)
	if !ok {
		return fmt.Errorf("%w: topic %s has no schema", ErrMalformed, topic)
	}
	id, err := frameID(data)
	if err != nil {
		return err
	}
	s, err := c.reader(ctx, readKey{id, name})
	if err != nil {
		return err
	}
	rest, err := s.decode(data[headerLen:], record)
	if err != nil {
		return fmt.Errorf("%w: %s, schema id %d: %w", ErrMalformed, name, id, err)
	}
	if len(rest) != 0 {
		return fmt.Errorf("%w: %s, schema id %d: %d trailing bytes", ErrMalformed, name, id, len(rest))
	}
	return nil
}

func (d decoder) decode(data []byte, record any) (rest []byte, err error) {
	if hot, ok := record.(hotReader); ok && d.same {
		return hot.readAvro(data)
	}
	return d.Schema.Decode(data, record)
}

// Generic reads any framed record as a map, by the schema it was written with.
func (c *Codec) Generic(ctx context.Context, data []byte) (map[string]any, error) {
	id, err := frameID(data)
	if err != nil {
		return nil, err
	}
	c.mu.RLock()
	g := c.generic[id]
	c.mu.RUnlock()
	if g == nil {
		s, err := c.fetch(ctx, id)
		if err != nil {
			return nil, err
		}
		if g, err = goavro.NewCodec(s.Schema); err != nil {
			return nil, fmt.Errorf("%w: schema id %d: %w", ErrMalformed, id, err)
		}
		c.mu.Lock()
		c.generic[id] = g
		c.mu.Unlock()
	}
	v, rest, err := g.NativeFromBinary(data[headerLen:])
	if err != nil {
		return nil, fmt.Errorf("%w: schema id %d: %w", ErrMalformed, id, err)
	}
	m, ok := v.(map[string]any)
	if !ok || len(rest) != 0 {
		return nil, fmt.Errorf("%w: schema id %d: not one record", ErrMalformed, id)
	}
	return m, nil
}

func frameID(data []byte) (int, error) {
	if len(data) < headerLen || data[0] != 0 {
		return 0, fmt.Errorf("%w: no Confluent frame", ErrMalformed)
	}
	return int(binary.BigEndian.Uint32(data[1:headerLen])), nil
}

// writer finds our schema for a topic and the registry's id of it, registering
// it where it is new. Hot paths come here for every record.
func (c *Codec) writer(ctx context.Context, topic string) (writer, error) {
	c.mu.RLock()
	w, ok := c.writers[topic]
	c.mu.RUnlock()
	if ok {
		return w, nil
	}
	name, ok := schemaOf(topic)
	if !ok {
		return writer{}, fmt.Errorf("topic %s has no schema", topic)
	}
	src, err := Source(name)
	if err != nil {
		return writer{}, err
	}
	subject := Subject(c.prefix + topic)
	id, err := register(ctx, c.reg, subject, src)
	if err != nil {
		return writer{}, err
	}
	w = writer{int32(id), c.readers[name]}
	c.mu.Lock()
	c.writers[topic] = w
	c.mu.Unlock()
	return w, nil
}

func (c *Codec) reader(ctx context.Context, k readKey) (decoder, error) {
	c.mu.RLock()
	s, ok := c.resolved[k]
	c.mu.RUnlock()
	if ok {
		return s, nil
	}
	written, err := c.fetch(ctx, k.id)
	if err != nil {
		return s, err
	}
	w, err := avro.Parse(written.Schema)
	if err != nil {
		return s, fmt.Errorf("%w: schema id %d: %w", ErrMalformed, k.id, err)
	}
	ours, err := Source(k.name)
	if err != nil {
		return s, err
	}
	s.same = sameSchema(written.Schema, ours)
	if s.Schema, err = avro.Resolve(w, c.readers[k.name]); err != nil {
		return s, fmt.Errorf("%w: schema id %d is not readable as %s: %w", ErrMalformed, k.id, k.name, err)
	}
	c.mu.Lock()
	c.resolved[k] = s
	c.mu.Unlock()
	return s, nil
}

// fetch asks the registry for a schema; a denied id is remembered briefly, and
// a failure to ask is never remembered.
func (c *Codec) fetch(ctx context.Context, id int) (sr.Schema, error) {
	c.mu.RLock()
	denied, ok := c.unknown[id]
	c.mu.RUnlock()
	if ok && time.Since(denied) < negativeLife {
		return sr.Schema{}, fmt.Errorf("%w: unknown schema id %d", ErrMalformed, id)
	}
	s, err := c.reg.SchemaByID(ctx, id)
	if err == nil {
		return s, nil
	}
	err = registryError(fmt.Sprintf("fetch schema id %d", id), err)
	if errors.Is(err, ErrMalformed) {
		c.mu.Lock()
		c.unknown[id] = time.Now()
		c.mu.Unlock()
	}
	return sr.Schema{}, err
}

// registryError tells a registry's refusal from its absence. Status decides:
// registries disagree on error codes.
func registryError(what string, err error) error {
	var re *sr.ResponseError
	if errors.As(err, &re) && re.StatusCode >= 400 && re.StatusCode < 500 &&
		re.StatusCode != http.StatusRequestTimeout && re.StatusCode != http.StatusTooManyRequests &&
		re.StatusCode != http.StatusUnauthorized && re.StatusCode != http.StatusForbidden {
		if re.StatusCode == http.StatusNotFound {
			return fmt.Errorf("%w: %s: %w", ErrMalformed, what, err)
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%w: %s: %w", ErrRegistryAway, what, err)
}
