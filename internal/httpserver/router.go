package httpserver

import (
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"
)

// NewRouter is a chi router whose own answers are problems too.
func NewRouter() *chi.Mux {
	r := chi.NewRouter()
	r.NotFound(NotFound)
	r.MethodNotAllowed(methodNotAllowed)
	return r
}

// NotFound answers 404. What belongs to another tenant is answered with it too,
// so that it cannot be told from what does not exist.
func NotFound(w http.ResponseWriter, r *http.Request) {
	(&Problem{Status: http.StatusNotFound, Code: "not_found", Title: "There is nothing here"}).Write(w, r)
}

// methodNotAllowed names the methods that the path takes; chi keeps its own
// list to itself. A path that takes none is not there.
func methodNotAllowed(w http.ResponseWriter, r *http.Request) {
	var allowed []string
	if rc := chi.RouteContext(r.Context()); rc != nil && rc.Routes != nil {
		for _, m := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
			if rc.Routes.Match(chi.NewRouteContext(), m, path(r)) {
				allowed = append(allowed, m)
			}
		}
	}
	if len(allowed) == 0 {
		NotFound(w, r)
		return
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	(&Problem{Status: http.StatusMethodNotAllowed, Code: "method_not_allowed", Title: "This path does not take that method",
		Detail: "Allowed: " + strings.Join(allowed, ", ") + "."}).Write(w, r)
}

// path is the path that chi routes by.
func path(r *http.Request) string {
	if r.URL.RawPath != "" {
		return r.URL.RawPath
	}
	return r.URL.Path
}
