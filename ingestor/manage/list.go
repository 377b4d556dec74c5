package manage

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/internal/httpserver"
)

// listing is a list over a range of time, newest first.
type listing[T any] struct {
	name    string // of the array in the answer, and of the list in its cursors
	of      string // what the list is about, where its path says so
	scope   string
	filters []string
	choices map[string][]string // of filters that take no other value
	// read gives up to limit+1 rows behind a position, newest first.
	read func(ctx context.Context, db Querier, tenant uuid.UUID, q *listQuery, behind position) ([]T, error)
	at   func(T) position
}

// serve answers a page of a list.
func serve[T any](m *Routes, l listing[T]) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		p, problem := apikey.AuthorizeTenant(m.deps.Keys, r, l.scope)
		var q *listQuery
		if problem == nil {
			q, problem = parseList(r, l.name, l.filters, l.choices)
		}
		if problem != nil {
			problem.Write(w, r)
			return
		}
		s, of := signer{m.deps.CursorKey}, q.of(p.TenantID)+l.of
		behind, ok := position{q.to, uuid.Max}, true
		if q.cursor != "" {
			behind, ok = s.open(q.cursor, of)
		}
		if !ok {
			badCursor().Write(w, r)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
		defer cancel()
		page, err := l.read(ctx, m.deps.DB, p.TenantID, q, behind)
		answer := map[string]any{l.name: page}
		if len(page) > q.limit {
			page = page[:q.limit]
			answer[l.name], answer["next_cursor"] = page, s.sign(l.at(page[q.limit-1]), of)
		}
		m.reply(w, r, answer, err)
	}
}

func badCursor() *httpserver.Problem {
	return &httpserver.Problem{Status: http.StatusBadRequest, Code: "invalid_cursor", Title: "The cursor does not belong to this list",
		Detail: "A cursor goes with the parameters of the page that it came from."}
}
