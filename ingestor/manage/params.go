package manage

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/internal/httpserver"
)

// How many rows a page has, unless limit says less or more, and at most.
const defaultLimit, maxLimit = 50, 200

// listQuery is what a list was asked for.
type listQuery struct {
	list     string    // its name, and that of the answer's array
	from, to time.Time // to excluded
	contact  *uuid.UUID
	filters  []string // names that this list knows
	values   url.Values
	limit    int
	cursor   string
}

// get gives the value of a filter; empty: none.
func (q *listQuery) get(filter string) string { return q.values.Get(filter) }

// of names the list, for its cursors. The limit may change from page to page.
func (q *listQuery) of(tenant uuid.UUID) string {
	s := q.list + "\x00" + tenant.String() + "\x00" + q.from.Format(time.RFC3339Nano) + "\x00" + q.to.Format(time.RFC3339Nano)
	for _, f := range q.filters {
		s += "\x00" + q.get(f)
	}
	return s
}

// before gives the end of the range behind a position, so that the range alone
// keeps a page out of the partitions that were read already.
func (q *listQuery) before(behind position) time.Time {
	if next := behind.at.Add(time.Microsecond); next.Before(q.to) {
		return next
	}
	return q.to
}

// maxFilter is how many bytes the value of a filter may have.
const maxFilter = 512

// parseList reads the query of a list. A parameter that nobody knows is
// refused: a filter that is spelled wrong would otherwise filter nothing.
func parseList(r *http.Request, list string, filters []string, choices map[string][]string) (*listQuery, *httpserver.Problem) {
	q, problem := parseQuery(r, list, slices.Concat([]string{"from", "to"}, filters))
	if problem != nil {
		return nil, problem
	}
	q.filters = filters
	if problem := q.times(); problem != nil {
		return nil, problem
	}
	for name, known := range choices {
		if given := q.get(name); given != "" && !slices.Contains(known, given) {
			return nil, badParameter(name + " is one of " + strings.Join(known, ", ") + ".")
		}
	}
	if id := q.get("contact_id"); id != "" {
		c, ok := parseID(id)
		if !ok {
			return nil, badParameter("contact_id is a UUID.")
		}
		q.contact = &c
	}
	return q, nil
}

// parsePage reads the query of a list without a range.
func parsePage(r *http.Request, list string) (*listQuery, *httpserver.Problem) {
	return parseQuery(r, list, nil)
}

// parseQuery reads a query with a limit, a cursor and what else is known.
func parseQuery(r *http.Request, list string, known []string) (*listQuery, *httpserver.Problem) {
	v, problem := parseParams(r, maxFilter, append(known, "limit", "cursor")...)
	if problem != nil {
		return nil, problem
	}
	q := &listQuery{list: list, values: v, limit: defaultLimit, cursor: v.Get("cursor")}
	if q.limit, problem = parseLimit(v, defaultLimit, maxLimit); problem != nil {
		return nil, problem
	}
	return q, nil
}

// parseParams reads a query that knows some parameters, each once and of at most
// so many bytes. One that is empty is refused, for it would filter nothing where
// its writer meant something; an empty cursor is the first page's.
func parseParams(r *http.Request, most int, known ...string) (url.Values, *httpserver.Problem) {
	v, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badParameter("The query cannot be read.")
	}
	for name, values := range v {
		if len(values) != 1 || !slices.Contains(known, name) {
			return nil, badParameter("Known are " + strings.Join(known, ", ") + ", each once.")
		}
		if values[0] == "" && name != "cursor" {
			return nil, badParameter(name + " is empty: leave it out, or say what it is.")
		}
		if len(values[0]) > most || !utf8.ValidString(values[0]) || strings.ContainsRune(values[0], 0) {
			return nil, badParameter(fmt.Sprintf("%s has at most %d bytes of UTF-8 without NUL.", name, most))
		}
	}
	return v, nil
}

func parseLimit(v url.Values, usual, most int) (int, *httpserver.Problem) {
	if v.Get("limit") == "" {
		return usual, nil
	}
	n, err := strconv.Atoi(v.Get("limit"))
	if err != nil || n < 1 || n > most {
		return 0, badParameter("limit is 1 to " + strconv.Itoa(most) + ".")
	}
	return n, nil
}

func (q *listQuery) times() *httpserver.Problem {
	from, to := q.get("from"), q.get("to")
	if from == "" || to == "" {
		return &httpserver.Problem{Status: http.StatusBadRequest, Code: "missing_time_range", Title: "The list needs its time range",
			Detail: "from and to, as 2026-11-01T00:00:00Z; to is not part of it."}
	}
	var okFrom, okTo bool
	q.from, okFrom = intake.ParseTime(from)
	q.to, okTo = intake.ParseTime(to)
	if !okFrom || !okTo || !q.from.Before(q.to) {
		return badParameter("from and to are times as 2026-11-01T00:00:00Z, from before to; a + in one is written %2B.")
	}
	return nil
}

// parseID takes an id in its usual form alone.
func parseID(s string) (uuid.UUID, bool) {
	id, err := uuid.Parse(s)
	return id, err == nil && len(s) == len(uuid.Nil.String())
}

func badParameter(detail string) *httpserver.Problem {
	return &httpserver.Problem{Status: http.StatusBadRequest, Code: "invalid_parameter", Title: "A parameter is missing or malformed", Detail: detail}
}
