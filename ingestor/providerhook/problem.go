package providerhook

import (
	"encoding/json"
	"net/http"
)

// problem is an RFC 9457 answer; Code is stable.
type problem struct {
	Type     string `json:"type"`
	Title    string `json:"title"`
	Status   int    `json:"status"`
	Code     string `json:"code"`
	Detail   string `json:"detail"`
	Instance string `json:"instance,omitempty"`
}

// headerRequestID is set by the front door before a handler runs.
const headerRequestID = "Carril-Request-Id"

func (p problem) write(w http.ResponseWriter) {
	p.Type, p.Title = "about:blank", http.StatusText(p.Status)
	p.Instance = w.Header().Get(headerRequestID)
	body, err := json.Marshal(p)
	if err != nil {
		body = nil // plain fields always encode
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_, _ = w.Write(body)
}
