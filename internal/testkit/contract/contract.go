// Package contract holds the requests and answers of tests against the OpenAPI
// document.
package contract

import (
	"bytes"
	"io"
	"net/http"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/schemas/openapi"
)

// document loads the contract once.
var document = sync.OnceValues(func() (*openapi3.T, error) {
	return openapi3.NewLoader().LoadFromData(openapi.YAML)
})

// Exchange is a request with the body that was sent, and its answer.
type Exchange struct {
	Route    string            // as the document names the path
	Params   map[string]string // of the path
	Request  *http.Request
	Sent     string
	Status   int
	Header   http.Header
	Answered []byte
}

// Require fails the test where the document does not allow the answer, nor,
// where it says that the request was taken, the request.
func Require(t testing.TB, x Exchange) {
	t.Helper()
	doc, err := document()
	require.NoError(t, err)
	item := doc.Paths.Value(x.Route)
	require.NotNil(t, item, "the document has no %s", x.Route)
	op := item.GetOperation(x.Request.Method)
	require.NotNil(t, op, "the document has no %s %s", x.Request.Method, x.Route)
	options := &openapi3filter.Options{IncludeResponseStatus: true, AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, SkipSettingDefaults: true}
	in := &openapi3filter.RequestValidationInput{Request: x.Request.Clone(t.Context()), PathParams: x.Params, Options: options,
		Route: &routers.Route{Spec: doc, Path: x.Route, PathItem: item, Method: x.Request.Method, Operation: op}}
	if x.Status < http.StatusMultipleChoices {
		in.Request.Body = io.NopCloser(bytes.NewReader([]byte(x.Sent)))
		require.NoError(t, openapi3filter.ValidateRequest(t.Context(), in))
	}
	require.NoError(t, openapi3filter.ValidateResponse(t.Context(), &openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: x.Status,
		Header: x.Header, Body: io.NopCloser(bytes.NewReader(x.Answered)), Options: options}), string(x.Answered))
}
