package app

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/ingestor"
	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/ingestor/manage"
	"github.com/softcrum/carril/internal/content"
	"github.com/softcrum/carril/internal/gates"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/rule"
	"github.com/softcrum/carril/internal/taxonomy"
	"github.com/softcrum/carril/schemas"
	"github.com/softcrum/carril/schemas/openapi"
)

// nobody stands in for what routes are made with; nothing is asked of it.
type nobody struct{}

func (nobody) Verify(context.Context, string) (*apikey.Principal, error) {
	return nil, apikey.ErrInvalid
}
func (nobody) Enqueue(context.Context, []ingestor.Record) error { return nil }
func (nobody) Request(context.Context, *schemas.NotificationRequested, string) error {
	return nil
}
func (nobody) Refresh(context.Context, uuid.UUID) error { return nil }
func (nobody) BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error) {
	return nil, errors.ErrUnsupported
}
func (nobody) Open(context.Context, string) (io.ReadSeekCloser, error) {
	return nil, errors.ErrUnsupported
}
func (nobody) Link(context.Context, string, time.Duration) (string, error) {
	return "", errors.ErrUnsupported
}

// TestContractNamesEveryRoute holds the document and the router against each
// other, both ways.
func TestContractNamesEveryRoute(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	api, err := ingestor.New(ingestor.Config{}, ingestor.Deps{Keys: nobody{}, Queue: nobody{}, Requests: nobody{}, Metrics: reg})
	require.NoError(t, err)
	metrics, err := httpserver.NewMetrics(reg)
	require.NoError(t, err)
	reads := manage.New(manage.Deps{Keys: nobody{}, Queues: func(context.Context) any { return nil }, Taxonomy: taxonomy.NewStore(nil), SchemasChanged: nobody{}.Refresh, Endpoints: endpoints{}, Erasures: erasures{}, Rules: rule.NewStore(nil),
		Templates: content.NewStore(nil), Permissions: gates.NewStore(nil), Snapshots: nobody{}, Files: nobody{}, Blasts: blasts{}})
	var mounted []string
	require.NoError(t, chi.Walk(apiRouter(metrics, api, reads, http.NotFoundHandler()), func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		if method != http.MethodHead { // the GET of the document says it
			mounted = append(mounted, method+" "+route)
		}
		return nil
	}))
	doc, err := openapi3.NewLoader().LoadFromData(openapi.YAML)
	require.NoError(t, err)
	var named []string
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			named = append(named, method+" "+path)
		}
	}
	slices.Sort(mounted)
	slices.Sort(named)
	require.Equal(t, named, mounted)
}
