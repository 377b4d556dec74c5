package schemas

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/sr"
)

// Compatibility of every subject: any reader reads any record, old or new.
const Compatibility = sr.CompatFullTransitive

// Register brings the registry to these schemas: it sets the compatibility of
// each topic's subject and registers the schema where it is new. A registry
// that already holds an incompatible one refuses, and the error names the
// subject.
func Register(ctx context.Context, cl *sr.Client, prefix string, channels []string) error {
	for _, t := range Topics(channels) {
		subject := Subject(prefix + t.Name)
		src, err := Source(t.Schema)
		if err != nil {
			return err
		}
		if _, err := cl.CreateSchema(ctx, subject, sr.Schema{Schema: src, Type: sr.TypeAvro}); err != nil {
			return registryError("register "+subject, err)
		}
		for _, r := range cl.SetCompatibility(ctx, sr.SetCompatibility{Level: Compatibility}, subject) {
			if r.Err != nil {
				return fmt.Errorf("set the compatibility of %s: %w", subject, r.Err)
			}
		}
	}
	return nil
}
