package devstack

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"
)

// maxSchemaBytes bounds the body of a request.
const maxSchemaBytes = 1 << 20

// registry speaks Confluent's REST API. srfake answers; added to it are a
// journal, so that ids survive a restart, and compatibility checks of Avro
// schemas, FULL_TRANSITIVE unless a subject is configured otherwise.
// Protobuf and JSON schemas are kept, but not checked.
type registry struct {
	fake    *srfake.Registry
	mux     *http.ServeMux
	journal *journal

	// fatal is called when a change was made but could not be journaled: only
	// a new process, which replays the journal, is in step with it again.
	fatal func(error)

	write sync.Mutex // one change at a time: the journal has their order
}

// openRegistry replays the journal at path, made when absent. With sync, a
// change is on disk before it is answered.
func openRegistry(path string, sync bool, fatal func(error)) (*registry, error) {
	r := &registry{
		fatal: fatal,
		fake:  srfake.NewRegistry(srfake.WithGlobalCompat(sr.CompatFullTransitive)),
		mux:   http.NewServeMux(),
	}
	j, changes, err := openJournal(path, sync)
	if err != nil {
		return nil, err
	}
	for i, c := range changes {
		if answer := r.pass(c.Method, c.URI, []byte(c.Body)); answer.Code >= 300 {
			_ = j.close()
			return nil, fmt.Errorf("replay line %d of %s: the registry answers %d", i+1, path, answer.Code)
		}
	}
	r.journal = j
	r.mux.HandleFunc("POST /subjects/{subject}/versions", r.register)
	r.mux.HandleFunc("POST /subjects/{subject}", r.lookup)
	r.mux.HandleFunc("POST /compatibility/subjects/{subject}/versions", r.compatible)
	r.mux.HandleFunc("POST /compatibility/subjects/{subject}/versions/{version}", r.compatible)
	r.mux.HandleFunc("GET /schemas/types", r.types)
	r.mux.HandleFunc("GET /{$}", r.root)
	r.mux.HandleFunc("/", r.other)
	return r, nil
}

func (r *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) { r.mux.ServeHTTP(w, req) }

func (r *registry) close() error { return r.journal.close() }

// register answers an id that is there already, else checks the schema
// against its predecessors, registers and journals it.
func (r *registry) register(w http.ResponseWriter, req *http.Request) {
	body, schema, ok := r.readSchema(w, req)
	if !ok {
		return
	}
	subject := req.PathValue("subject")
	r.write.Lock()
	defer r.write.Unlock()
	if known := r.pass(http.MethodPost, subjectPath(subject), body); known.Code == http.StatusOK {
		r.answerID(w, known.Body.Bytes())
		return
	}
	if _, err := r.parse(schema); err != nil {
		refuse(w, http.StatusUnprocessableEntity, sr.ErrInvalidSchema.Code, "Invalid schema: "+err.Error())
		return
	}
	conflicts, err := r.conflicts(subject, schema, r.predecessors(subject))
	if err != nil {
		refuse(w, http.StatusInternalServerError, sr.ErrStoreError.Code, err.Error())
		return
	}
	if len(conflicts) > 0 {
		refuse(w, http.StatusConflict, http.StatusConflict, fmt.Sprintf(
			"Schema being registered is incompatible with an earlier schema for subject %q: %s", subject, conflicts[0]))
		return
	}
	r.change(w, change{Method: http.MethodPost, URI: req.URL.RequestURI(), Body: string(body)})
}

// answerID answers a registration from the description of the known schema.
func (r *registry) answerID(w http.ResponseWriter, description []byte) {
	var known struct {
		ID int `json:"id"`
	}
	if err := json.Unmarshal(description, &known); err != nil {
		refuse(w, http.StatusInternalServerError, sr.ErrStoreError.Code, "a stored schema cannot be read")
		return
	}
	answer(w, http.StatusOK, known)
}

// lookup finds a schema under its subject.
func (r *registry) lookup(w http.ResponseWriter, req *http.Request) {
	body, _, ok := r.readSchema(w, req)
	if !ok {
		return
	}
	copyAnswer(w, r.pass(http.MethodPost, req.URL.RequestURI(), body))
}

// compatible answers whether a schema could be registered.
func (r *registry) compatible(w http.ResponseWriter, req *http.Request) {
	_, schema, ok := r.readSchema(w, req)
	if !ok {
		return
	}
	subject := req.PathValue("subject")
	earlier := r.predecessors(subject)
	if version := req.PathValue("version"); version != "" {
		if earlier, ok = pick(earlier, version); !ok {
			refuse(w, http.StatusNotFound, sr.ErrVersionNotFound.Code, "Version "+version+" not found.")
			return
		}
	}
	if _, err := r.parse(schema); err != nil {
		refuse(w, http.StatusUnprocessableEntity, sr.ErrInvalidSchema.Code, "Invalid schema: "+err.Error())
		return
	}
	conflicts, err := r.conflicts(subject, schema, earlier)
	if err != nil {
		refuse(w, http.StatusInternalServerError, sr.ErrStoreError.Code, err.Error())
		return
	}
	verdict := map[string]any{"is_compatible": len(conflicts) == 0}
	if req.URL.Query().Get("verbose") == "true" {
		verdict["messages"] = append([]string{}, conflicts...)
	}
	answer(w, http.StatusOK, verdict)
}

// pick returns the one version that was asked for, by number or "latest".
func pick(versions []sr.SubjectSchema, version string) ([]sr.SubjectSchema, bool) {
	for i, v := range versions {
		if strconv.Itoa(v.Version) == version || (version == "latest" && i == len(versions)-1) {
			return versions[i : i+1], true
		}
	}
	return nil, false
}

func (r *registry) types(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, []string{"JSON", "PROTOBUF", "AVRO"})
}

func (r *registry) root(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, struct{}{})
}

// other hands reads to srfake as they are, and journals every other request.
func (r *registry) other(w http.ResponseWriter, req *http.Request) {
	if req.Method == http.MethodGet || req.Method == http.MethodHead {
		r.fake.Handler().ServeHTTP(w, req)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxSchemaBytes))
	if err != nil {
		refuse(w, http.StatusUnprocessableEntity, sr.ErrInvalidSchema.Code, "The body cannot be read.")
		return
	}
	r.write.Lock()
	defer r.write.Unlock()
	r.change(w, change{Method: req.Method, URI: req.URL.RequestURI(), Body: string(body)})
}

// change applies a change and journals it before it is answered. The caller
// holds the write lock.
func (r *registry) change(w http.ResponseWriter, c change) {
	result := r.pass(c.Method, c.URI, []byte(c.Body))
	if result.Code < 300 {
		if err := r.journal.append(c); err != nil {
			refuse(w, http.StatusInternalServerError, sr.ErrStoreError.Code, err.Error())
			r.fatal(err)
			return
		}
	}
	copyAnswer(w, result)
}

// pass has srfake answer a request.
func (r *registry) pass(method, uri string, body []byte) *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	req, err := http.NewRequest(method, uri, bytes.NewReader(body))
	if err != nil {
		rec.WriteHeader(http.StatusBadRequest)
		return rec
	}
	r.fake.Handler().ServeHTTP(rec, req)
	return rec
}

// readSchema reads a schema from the request. Clients send fields that srfake
// does not know or that are null: the body returned has neither.
func (r *registry) readSchema(w http.ResponseWriter, req *http.Request) (body []byte, schema sr.Schema, ok bool) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxSchemaBytes))
	if err == nil {
		err = json.Unmarshal(raw, &schema)
	}
	if err == nil {
		body, err = json.Marshal(schema)
	}
	if err != nil {
		refuse(w, http.StatusUnprocessableEntity, sr.ErrInvalidSchema.Code, "The body is no schema: "+err.Error())
		return nil, schema, false
	}
	return body, schema, true
}

func copyAnswer(w http.ResponseWriter, rec *httptest.ResponseRecorder) {
	for name, values := range rec.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(rec.Code)
	_, _ = w.Write(rec.Body.Bytes())
}

func refuse(w http.ResponseWriter, status, code int, message string) {
	answer(w, status, map[string]any{"error_code": code, "message": message})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/vnd.schemaregistry.v1+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}
