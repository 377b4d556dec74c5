package providerhook

import (
	"net/http"

	"github.com/softcrum/carril/internal/httpserver"
)

// problem is a refusal; the zero value is none.
type problem struct {
	Status int
	Code   string
	Detail string
}

func (p problem) write(w http.ResponseWriter, r *http.Request) {
	(&httpserver.Problem{Status: p.Status, Code: p.Code, Detail: p.Detail}).Write(w, r)
}
