package openapi

import (
	"regexp"
	"strings"
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

func TestPage(t *testing.T) {
	t.Parallel()
	page, err := Page()
	require.NoError(t, err)
	html := string(page)
	doc, err := openapi3.NewLoader().LoadFromData(YAML)
	require.NoError(t, err)
	t.Run("HasEveryOperationAndSchema", func(t *testing.T) {
		t.Parallel()
		for path, item := range doc.Paths.Map() {
			for method, op := range item.Operations() {
				require.Contains(t, html, `<article id="`+op.OperationID+`">`, path)
				require.Contains(t, html, method+" "+path+"</a>")
			}
		}
		for name := range doc.Components.Schemas {
			require.Contains(t, html, `id="schema-`+name+`"`)
		}
	})
	t.Run("LeadsNowhereThatIsNotThere", func(t *testing.T) {
		t.Parallel()
		for _, to := range regexp.MustCompile(`href="#([^"]+)"`).FindAllStringSubmatch(html, -1) {
			require.Contains(t, html, `id="`+to[1]+`"`)
		}
	})
	t.Run("LoadsNothing", func(t *testing.T) {
		t.Parallel()
		for _, bad := range []string{"<script", "src=", "<link", "@import", "url(", "http-equiv", `href="http`} {
			require.NotContains(t, html, bad)
		}
	})
	t.Run("KeepsTheDigitsOfExamples", func(t *testing.T) {
		t.Parallel()
		require.Contains(t, html, "182500.50")
		require.Positive(t, strings.Count(html, "taxonomy_violation"))
	})
}
