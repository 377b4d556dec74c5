package providertest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"
)

// ResendOpenAPI names the file with Resend's own OpenAPI description, which is
// theirs and not part of this repository.
const ResendOpenAPI = "CARRIL_RESEND_OPENAPI"

// Schemas loads the schemas of Resend's OpenAPI description from the file that
// ResendOpenAPI names, else from ../shared/reference beside the repository. It
// skips the test, saying so, where there is neither.
func Schemas(t testing.TB) openapi3.Schemas {
	t.Helper()
	path := os.Getenv(ResendOpenAPI)
	if path == "" {
		path = filepath.Join(Root(t), "..", "shared", "reference", "resend-openapi.yaml")
	}
	raw, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		t.Skipf("no OpenAPI description of Resend's here: name one in %s", ResendOpenAPI)
	}
	require.NoError(t, err)
	doc, err := openapi3.NewLoader().LoadFromData(raw)
	require.NoError(t, err)
	return doc.Components.Schemas
}

// Root gives the folder of the module.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	require.NoError(t, err)
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		require.NotEqual(t, dir, parent, "no go.mod above the test")
		dir = parent
	}
}

// Conforms checks a JSON document against a schema of a loaded description.
func Conforms(t testing.TB, schemas openapi3.Schemas, name string, document []byte) {
	t.Helper()
	require.Contains(t, schemas, name)
	var v any
	require.NoError(t, json.Unmarshal(document, &v))
	require.NoError(t, schemas[name].Value.VisitJSON(v), "%s does not conform to %s", document, name)
}
