package manage

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/internal/httpserver"
)

// How many rows a page has, unless limit says less or more, and at most.
const defaultLimit, maxLimit = 50, 200

// listQuery is what a list of sends was asked for.
type listQuery struct {
	from, to time.Time // to excluded
	contact  *uuid.UUID
	channel  string
	limit    int
	cursor   string
}

// of names the list, for its cursors. The limit may change from page to page.
func (q *listQuery) of(tenant uuid.UUID) string {
	contact := ""
	if q.contact != nil {
		contact = q.contact.String()
	}
	return "sends\x00" + tenant.String() + "\x00" + q.from.Format(time.RFC3339Nano) + "\x00" + q.to.Format(time.RFC3339Nano) + "\x00" + contact + "\x00" + q.channel
}

// parseList reads the query of a list. A parameter that nobody knows is
// refused: a filter that is spelled wrong would otherwise filter nothing.
func parseList(r *http.Request) (*listQuery, *httpserver.Problem) {
	v, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badParameter("The query cannot be read.")
	}
	for name, values := range v {
		if len(values) != 1 || !slices.Contains([]string{"from", "to", "contact_id", "channel", "limit", "cursor"}, name) {
			return nil, badParameter("from, to, contact_id, channel, limit and cursor, each once.")
		}
	}
	if v.Get("from") == "" || v.Get("to") == "" {
		return nil, &httpserver.Problem{Status: http.StatusBadRequest, Code: "missing_time_range", Title: "The list needs its time range",
			Detail: "from and to, as 2026-11-01T00:00:00Z; to is not part of it."}
	}
	q := &listQuery{channel: v.Get("channel"), limit: defaultLimit, cursor: v.Get("cursor")}
	var fromErr, toErr error
	q.from, fromErr = time.Parse(time.RFC3339Nano, v.Get("from"))
	q.to, toErr = time.Parse(time.RFC3339Nano, v.Get("to"))
	if fromErr != nil || toErr != nil || !q.from.Before(q.to) {
		return nil, badParameter("from and to are times as 2026-11-01T00:00:00Z, from before to; a + in one is written %2B.")
	}
	q.from, q.to = q.from.UTC(), q.to.UTC()
	if id := v.Get("contact_id"); id != "" {
		c, err := uuid.Parse(id)
		if err != nil {
			return nil, badParameter("contact_id is a UUID.")
		}
		q.contact = &c
	}
	if n := v.Get("limit"); n != "" {
		if q.limit, err = strconv.Atoi(n); err != nil || q.limit < 1 || q.limit > maxLimit {
			return nil, badParameter("limit is 1 to " + strconv.Itoa(maxLimit) + ".")
		}
	}
	return q, nil
}

func badParameter(detail string) *httpserver.Problem {
	return &httpserver.Problem{Status: http.StatusBadRequest, Code: "invalid_parameter", Title: "A parameter is missing or malformed", Detail: detail}
}
