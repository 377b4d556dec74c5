package schemas

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

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
		if _, err := register(ctx, cl, subject, src); err != nil {
			return err
		}
		for _, r := range cl.SetCompatibility(ctx, sr.SetCompatibility{Level: Compatibility}, subject) {
			if r.Err != nil {
				return fmt.Errorf("set the compatibility of %s: %w", subject, r.Err)
			}
		}
	}
	return nil
}

// registerTries bounds how often a registration is repeated.
const registerTries = 5

// register makes a subject's schema known and gives its id. A registration that
// is not found says nothing of the schema: a registry may answer so while another
// subject of the same content is being removed. It is repeated, and then counts
// as the registry's absence.
func register(ctx context.Context, cl Registry, subject, source string) (id int, err error) {
	what := "register " + subject
	for try := range registerTries {
		ss, err := cl.CreateSchema(ctx, subject, sr.Schema{Schema: source, Type: sr.TypeAvro})
		if err == nil {
			return ss.ID, nil
		}
		var re *sr.ResponseError
		if !errors.As(err, &re) || re.StatusCode != http.StatusNotFound {
			return 0, registryError(what, err)
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("%w: %s: %w", ErrRegistryAway, what, ctx.Err())
		case <-time.After(time.Duration(1<<try) * 50 * time.Millisecond):
		}
	}
	return 0, fmt.Errorf("%w: %s: it is not found, %d times over", ErrRegistryAway, what, registerTries)
}
