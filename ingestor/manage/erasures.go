package manage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/httpserver"
)

// Erasures takes requests to forget a person. ErrNotFound says that the tenant has
// no such contact; asked again it gives the same erasure.
type Erasures interface {
	Request(ctx context.Context, tenant, contact uuid.UUID, by string) (uuid.UUID, error)
}

// Erasure is how far a person is forgotten.
type Erasure struct {
	ErasureID   uuid.UUID      `json:"erasure_id"`
	ContactID   *uuid.UUID     `json:"contact_id,omitempty"` // none of the clock for anonymous contacts
	Contacts    []uuid.UUID    `json:"contacts"`             // with all that were merged into it
	State       string         `json:"state"`                // open or done
	Cause       string         `json:"cause"`                // request or anonymous
	RequestedBy string         `json:"requested_by"`
	ErasedAt    time.Time      `json:"erased_at"` // from then on nothing is sent and nothing brings the person back
	DoneAt      *time.Time     `json:"done_at,omitempty"`
	Stores      []ErasureStore `json:"stores"`
	Open        []string       `json:"open"` // names of the stores that are not through
}

// ErasureStore is a store that a person is taken out of.
type ErasureStore struct {
	Store  string     `json:"store"`
	State  string     `json:"state"` // open or done
	Rows   int64      `json:"rows"`  // emptied or deleted so far
	DueAt  time.Time  `json:"due_at"`
	DoneAt *time.Time `json:"done_at,omitempty"`
}

// FindErasure reads an erasure. The error is ErrNotFound for another tenant's,
// too.
func FindErasure(ctx context.Context, db Querier, tenant, id uuid.UUID) (*Erasure, error) {
	const sql = `SELECT erasure_id, contact_id, contacts, CASE WHEN done_at IS NULL THEN 'open' ELSE 'done' END, cause, requested_by, erased_at, done_at
FROM core.erasures WHERE erasure_id = $1 AND tenant_id = $2`
	e := Erasure{Stores: []ErasureStore{}, Open: []string{}}
	err := db.QueryRow(ctx, sql, id, tenant).Scan(&e.ErasureID, &e.ContactID, &e.Contacts, &e.State, &e.Cause, &e.RequestedBy, &e.ErasedAt, &e.DoneAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read an erasure: %w", err)
	}
	e.ErasedAt, e.DoneAt = e.ErasedAt.UTC(), inUTC(e.DoneAt)
	const stores = `SELECT store, CASE WHEN done_at IS NULL THEN 'open' ELSE 'done' END, rows, due_at, done_at FROM core.erasure_stores
WHERE erasure_id = $1 ORDER BY due_at, store`
	rows, err := db.Query(ctx, stores, id)
	if err != nil {
		return nil, fmt.Errorf("read the stores of an erasure: %w", err)
	}
	e.Stores, err = pgx.AppendRows(e.Stores, rows, func(row pgx.CollectableRow) (s ErasureStore, err error) {
		err = row.Scan(&s.Store, &s.State, &s.Rows, &s.DueAt, &s.DoneAt)
		s.DueAt, s.DoneAt = s.DueAt.UTC(), inUTC(s.DoneAt)
		if s.DoneAt == nil {
			e.Open = append(e.Open, s.Store)
		}
		return s, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the stores of an erasure: %w", err)
	}
	return &e, nil
}

func inUTC(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	return new(t.UTC())
}

// eraseContact answers DELETE /v1/core/contacts/{contact_id}.
func (m *Routes) eraseContact(ctx context.Context, _ *http.Request, tenant, id uuid.UUID) (any, *httpserver.Problem, error) {
	erasure, err := m.deps.Erasures.Request(ctx, tenant, id, "api")
	if err != nil {
		return nil, nil, err
	}
	e, err := FindErasure(ctx, m.deps.DB, tenant, erasure)
	return e, nil, err
}

// erasure answers GET /v1/core/erasures/{erasure_id}.
func (m *Routes) erasure(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	id, ok := parseID(chi.URLParam(r, "erasure_id"))
	if !ok {
		return nil, nil, ErrNotFound
	}
	e, err := FindErasure(ctx, m.deps.DB, tenant, id)
	return e, nil, err
}
