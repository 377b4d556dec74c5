package devstack

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/twmb/avro"
	"github.com/twmb/franz-go/pkg/sr"
)

func subjectPath(subject string) string { return "/subjects/" + url.PathEscape(subject) }

// predecessors lists the versions of a subject that are not deleted, oldest
// first.
func (r *registry) predecessors(subject string) []sr.SubjectSchema {
	listed := r.pass(http.MethodGet, subjectPath(subject)+"/versions", nil)
	var numbers []int
	if listed.Code != http.StatusOK || json.Unmarshal(listed.Body.Bytes(), &numbers) != nil {
		return nil
	}
	versions := make([]sr.SubjectSchema, 0, len(numbers))
	for _, n := range numbers {
		if v, ok := r.fake.GetSchema(subject, n); ok {
			versions = append(versions, v)
		}
	}
	return versions
}

// level is the compatibility level of a subject.
func (r *registry) level(subject string) sr.CompatibilityLevel {
	got := r.pass(http.MethodGet, "/config/"+url.PathEscape(subject), nil)
	var config struct {
		Level sr.CompatibilityLevel `json:"compatibilityLevel"`
	}
	if got.Code != http.StatusOK || json.Unmarshal(got.Body.Bytes(), &config) != nil {
		return sr.CompatFullTransitive
	}
	return config.Level
}

// rule is what a compatibility level asks for.
type rule struct {
	backward   bool // the new schema reads what the old one wrote
	forward    bool // the old schema reads what the new one wrote
	transitive bool // against every earlier version, not the last alone
}

func ruleOf(level sr.CompatibilityLevel) rule {
	switch level {
	case sr.CompatBackward:
		return rule{backward: true}
	case sr.CompatBackwardTransitive:
		return rule{backward: true, transitive: true}
	case sr.CompatForward:
		return rule{forward: true}
	case sr.CompatForwardTransitive:
		return rule{forward: true, transitive: true}
	case sr.CompatFull:
		return rule{backward: true, forward: true}
	case sr.CompatFullTransitive:
		return rule{backward: true, forward: true, transitive: true}
	default:
		return rule{}
	}
}

// conflicts says how the schema breaks the subject's rule against the earlier
// versions; an error means that a stored schema could not be read.
func (r *registry) conflicts(subject string, schema sr.Schema, earlier []sr.SubjectSchema) ([]string, error) {
	want := ruleOf(r.level(subject))
	if !want.transitive && len(earlier) > 1 {
		earlier = earlier[len(earlier)-1:]
	}
	var found []string
	for _, old := range earlier {
		if old.Type != schema.Type {
			found = append(found, fmt.Sprintf("version %d is %s, not %s", old.Version, old.Type, schema.Type))
			continue
		}
		broken, err := r.compare(want, old, schema)
		if err != nil {
			return nil, err
		}
		found = append(found, broken...)
	}
	return found, nil
}

// compare holds one earlier version against the new schema.
func (r *registry) compare(want rule, old sr.SubjectSchema, schema sr.Schema) ([]string, error) {
	before, err := r.parse(old.Schema)
	if err != nil {
		return nil, fmt.Errorf("read version %d: %w", old.Version, err)
	}
	after, err := r.parse(schema)
	if err != nil {
		return nil, fmt.Errorf("read the new schema: %w", err)
	}
	if before == nil || after == nil {
		return nil, nil
	}
	var found []string
	if want.backward {
		if err := avro.CheckCompatibility(before, after); err != nil {
			found = append(found, fmt.Sprintf("it cannot read what version %d wrote: %v", old.Version, err))
		}
	}
	if want.forward {
		if err := avro.CheckCompatibility(after, before); err != nil {
			found = append(found, fmt.Sprintf("version %d cannot read what it writes: %v", old.Version, err))
		}
	}
	return found, nil
}

// parse reads an Avro schema with all that it refers to; nil for other types.
func (r *registry) parse(schema sr.Schema) (*avro.Schema, error) {
	if schema.Type != sr.TypeAvro {
		return nil, nil
	}
	var cache avro.SchemaCache
	if err := r.parseReferences(&cache, schema, 0); err != nil {
		return nil, err
	}
	return cache.Parse(schema.Schema)
}

// maxReferenceDepth ends what would be an endless chain of references.
const maxReferenceDepth = 32

func (r *registry) parseReferences(cache *avro.SchemaCache, schema sr.Schema, depth int) error {
	if depth > maxReferenceDepth {
		return fmt.Errorf("references are nested deeper than %d", maxReferenceDepth)
	}
	for _, ref := range schema.References {
		target, ok := r.fake.GetSchema(ref.Subject, ref.Version)
		if !ok {
			return fmt.Errorf("the reference %q to %s version %d leads nowhere", ref.Name, ref.Subject, ref.Version)
		}
		if err := r.parseReferences(cache, target.Schema, depth+1); err != nil {
			return err
		}
		if _, err := cache.Parse(target.Schema.Schema); err != nil {
			return fmt.Errorf("read the referenced %s version %d: %w", ref.Subject, ref.Version, err)
		}
	}
	return nil
}
