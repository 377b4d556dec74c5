package openapi

import (
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"
)

func TestDocument(t *testing.T) {
	t.Parallel()
	doc, err := openapi3.NewLoader().LoadFromData(YAML)
	require.NoError(t, err)
	t.Run("IsValidWithItsExamples", func(t *testing.T) {
		t.Parallel()
		require.NoError(t, doc.Validate(t.Context(), openapi3.EnableExamplesValidation()))
	})
	t.Run("GivesEveryAnswerARequestID", func(t *testing.T) {
		t.Parallel()
		for path, item := range doc.Paths.Map() {
			for method, op := range item.Operations() {
				for status, r := range op.Responses.Map() {
					require.Contains(t, r.Value.Headers, "Carril-Request-Id", "%s %s %s", method, path, status)
				}
			}
		}
	})
}
