package sandbox

import (
	"encoding/json"
	"html/template"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
)

// page is how many entries a view gives at most.
const page = 1000

// listing is one page of a ledger. Next is what to give as since for the one
// after it; Gone is how many entries before this page were already dropped.
type listing[T any] struct {
	Entries  []T      `json:"entries"`
	Next     uint64   `json:"next"`
	Gone     uint64   `json:"gone"`
	Counters Counters `json:"counters"`
}

func (s *Server) viewReceipts(w http.ResponseWriter, r *http.Request) {
	viewRing(s, w, r, &s.ledger.receipts, func(e Receipt) uint64 { return e.Seq })
}

func (s *Server) viewRequests(w http.ResponseWriter, r *http.Request) {
	viewRing(s, w, r, &s.ledger.requests, func(e Request) uint64 { return e.Seq })
}

func viewRing[T any](s *Server, w http.ResponseWriter, r *http.Request, entries *ring[T], seq func(T) uint64) {
	since := uint64(0)
	if text := r.URL.Query().Get("since"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			refuse(http.StatusBadRequest, nameValidation, "since is not a number.").write(w)
			return
		}
		since = n
	}
	list, gone := entries.since(since, page)
	next := since
	if len(list) > 0 {
		next = seq(list[len(list)-1])
	}
	s.encode(w, listing[T]{Entries: list, Next: next, Gone: gone, Counters: s.Counters()})
}

func (s *Server) viewCounters(w http.ResponseWriter, _ *http.Request) { s.encode(w, s.Counters()) }

func (s *Server) viewFaults(w http.ResponseWriter, _ *http.Request) { s.encode(w, s.faults.all()) }

func (s *Server) dropFaults(w http.ResponseWriter, _ *http.Request) {
	s.ClearFaults()
	w.WriteHeader(http.StatusNoContent)
}

// addFaults wants JSON by name: a page in somebody's browser can post a form to
// a loopback address, but not that.
func (s *Server) addFaults(w http.ResponseWriter, r *http.Request) {
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/json" {
		refuse(http.StatusUnsupportedMediaType, nameValidation, "Faults are application/json.").write(w)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err == nil {
		err = s.InjectJSON(body)
	}
	if err != nil {
		refuse(http.StatusBadRequest, nameValidation, err.Error()).write(w)
		return
	}
	w.WriteHeader(http.StatusCreated)
}

func (s *Server) encode(w http.ResponseWriter, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		s.log.Error("sandbox could not encode a view", "error", err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	writeJSON(w, http.StatusOK, body)
}

// Contents gives the last messages as they would have been sent, oldest first; at
// most Config.MaxContents.
func (s *Server) Contents() []Content { return s.ledger.contents.all() }

// Content gives a message by its id, while it is kept.
func (s *Server) Content(id string) (Content, bool) {
	for _, c := range s.ledger.contents.all() {
		if c.MessageID == id {
			return c, true
		}
	}
	return Content{}, false
}

// viewMessage gives JSON, or a page where a browser asks for one.
func (s *Server) viewMessage(w http.ResponseWriter, r *http.Request) {
	c, ok := s.Content(r.PathValue("id"))
	switch {
	case !ok:
		refuse(http.StatusNotFound, nameNotFound, "No such message, or no longer.").write(w)
	case r.URL.Query().Get("view") == "html":
		s.html(w, messagePage(), c)
	default:
		s.encode(w, c)
	}
}

func (s *Server) viewIndex(w http.ResponseWriter, _ *http.Request) {
	contents := s.Contents()
	slices.Reverse(contents)
	s.html(w, indexPage(), struct {
		Messages []Content
		Counters Counters
	}{contents, s.Counters()})
}

// html writes a page that can load and run nothing: what stands in a message is
// somebody else's.
func (s *Server) html(w http.ResponseWriter, t *template.Template, v any) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-src 'self'")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if err := t.Execute(w, v); err != nil {
		s.log.Error("sandbox could not write a page", "error", err)
	}
}

const style = `<style>body{font:14px/1.5 system-ui,sans-serif;margin:2rem;max-width:70rem}table{border-collapse:collapse;width:100%}
td,th{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #ddd;vertical-align:top}pre{white-space:pre-wrap}
iframe{width:100%;height:30rem;border:1px solid #ddd}</style>`

func indexPage() *template.Template {
	return template.Must(template.New("index").Parse(`<!doctype html><html lang="en"><meta charset="utf-8"><title>Provider sandbox</title>` + style + `
<h1>Provider sandbox</h1>
<p>Nothing here was sent. {{.Counters.Accepted}} messages in {{.Counters.Requests}} requests, {{.Counters.RateLimited}} refused for the rate,
{{.Counters.WebhooksDelivered}} webhooks delivered, {{.Counters.WebhooksPending}} waiting.</p>
<table><tr><th>At</th><th>To</th><th>Subject</th><th>Tenant</th><th>Send</th></tr>
{{range .Messages}}<tr><td>{{.At.UTC.Format "15:04:05.000"}}</td><td>{{range .To}}{{.}} {{end}}</td>
<td><a href="/sandbox/messages/{{.MessageID}}?view=html">{{.Subject}}</a></td><td>{{index .Tags "tenant_id"}}</td><td>{{index .Tags "send_id"}}</td></tr>
{{else}}<tr><td colspan="5">No message yet.</td></tr>{{end}}</table></html>`))
}

func messagePage() *template.Template {
	return template.Must(template.New("message").Parse(`<!doctype html><html lang="en"><meta charset="utf-8"><title>{{.Subject}}</title>` + style + `
<p><a href="/">All messages</a></p><h1>{{.Subject}}</h1>
<table><tr><th>From</th><td>{{.From}}</td></tr><tr><th>To</th><td>{{range .To}}{{.}} {{end}}</td></tr>
{{range $name, $value := .Headers}}<tr><th>{{$name}}</th><td>{{$value}}</td></tr>{{end}}
{{range $name, $value := .Tags}}<tr><th>{{$name}}</th><td>{{$value}}</td></tr>{{end}}</table>
{{with .HTML}}<h2>HTML</h2><iframe sandbox srcdoc="{{.}}"></iframe>{{end}}{{with .Text}}<h2>Text</h2><pre>{{.}}</pre>{{end}}</html>`))
}
