package resend_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/provider/providertest"
	"github.com/softcrum/carril/dispatcher/provider/resend"
)

// FS-MSG-0005 AC8: no code path writes contacts to the provider's audiences. The
// transport refuses every path but the sending two, and no Go file of the
// repository names another.

func TestGuard(t *testing.T) {
	t.Parallel()
	const base = "https://api.resend.com"
	reached := 0
	guard := resend.Guard(t, base, carrier(func(r *http.Request) (*http.Response, error) {
		reached++
		return answering(200, "{}")(r)
	}))

	t.Run("RefusesEverythingButTheSendingEndpoints", func(t *testing.T) {
		for _, r := range []struct{ method, url string }{
			{"POST", base + "/audiences"}, {"POST", base + "/audiences/1/contacts"}, {"POST", base + "/contacts"},
			{"PATCH", base + "/contacts/1"}, {"DELETE", base + "/contacts/1"}, {"POST", base + "/contacts/imports"},
			{"POST", base + "/contacts/1/segments/2"}, {"PATCH", base + "/contacts/1/topics"}, {"GET", base + "/contacts"},
			{"POST", base + "/segments"}, {"POST", base + "/topics"}, {"POST", base + "/contact-properties"},
			{"POST", base + "/broadcasts"}, {"POST", base + "/broadcasts/1/send"}, {"POST", base + "/automations"},
			{"POST", base + "/events"}, {"POST", base + "/events/send"}, {"POST", base + "/suppressions"},
			{"POST", base + "/suppressions/batch/add"}, {"DELETE", base + "/suppressions/1"},
			{"GET", base + "/emails"}, {"PATCH", base + "/emails"}, {"POST", base + "/emails/"}, {"POST", base + "/emails/1/cancel"},
			{"POST", base + "/emails/../audiences"}, {"POST", base + "/emails%2f..%2faudiences"}, {"POST", base + "//emails"}, {"POST", base + "/emails%2fbatch"},
			{"POST", base + "/Emails"}, {"POST", base + "/emails?to=/contacts"}, {"POST", base + ""},
			{"POST", "http://api.resend.com/emails"}, {"POST", "https://api.resend.com:444/emails"}, {"POST", "https://other.example.com/emails"},
		} {
			req, err := http.NewRequestWithContext(t.Context(), r.method, r.url, strings.NewReader("{}"))
			require.NoError(t, err)
			_, err = guard.RoundTrip(req)
			require.ErrorContains(t, err, "only the two sending endpoints", "%s %s", r.method, r.url)
		}
		require.Zero(t, reached)
	})

	t.Run("PassesTheSendingEndpoints", func(t *testing.T) {
		for _, path := range []string{"/emails", "/emails/batch"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+path, strings.NewReader("{}"))
			require.NoError(t, err)
			_, err = guard.RoundTrip(req)
			require.NoError(t, err, path)
		}
		require.Equal(t, 2, reached)
	})

	t.Run("RefusesAnotherHostHeader", func(t *testing.T) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/emails", strings.NewReader("{}"))
		require.NoError(t, err)
		req.Host = "other.example.com"
		_, err = guard.RoundTrip(req)
		require.Error(t, err)
	})
}

// audienceOnly are paths that only a provider has, wherever they stand.
var audienceOnly = regexp.MustCompile(`^/?(audiences|contact-properties|segments|broadcasts|automations)(/|$)|api\.resend\.com/(audiences|contacts|contact-properties|segments|topics|broadcasts|automations|events|suppressions)`)

// ambiguous are paths that our own API has too; they count where a provider is
// spoken to.
var ambiguous = regexp.MustCompile(`^/?(contacts|topics|events|suppressions)(/|$)|^topic_id$|json:"(topic_id|audience_id|segment_id)`)

func TestRepository(t *testing.T) {
	t.Parallel()

	t.Run("NamesNoAudiencePathOfAProvider", func(t *testing.T) {
		t.Parallel()
		files := 0
		walkGo(t, providertest.Root(t), func(path string) {
			src, err := os.ReadFile(path)
			require.NoError(t, err)
			files++
			require.Empty(t, audiencePaths(t, path, src), path)
		})
		require.Greater(t, files, 5)
	})

	t.Run("WouldBeCaughtIfItDid", func(t *testing.T) {
		t.Parallel()
		for src, want := range map[string]int{
			`package x; const p = "/audiences"`:                                                                                             1,
			`package x; const p = "https://api.resend.com/contacts"`:                                                                        1,
			`package x; import _ "github.com/resend/resend-go/v3"`:                                                                          1,
			"package x; import _ \"github.com/softcrum/carril/dispatcher/provider\"; var p = `/contacts/1`":                                 1,
			"package x; import _ \"github.com/softcrum/carril/dispatcher/provider/resend\"; type e struct { T string `json:\"topic_id\"` }": 1,
			`package x; const p = "/contacts"`:                                                                                              0, // our own API's
			`package x; const p = "/v1/core/contacts"`:                                                                                      0,
		} {
			require.Len(t, audiencePaths(t, "x.go", []byte(src)), want, src)
		}
	})
}

// walkGo visits every Go file of the product; tests are none of its code paths.
func walkGo(t *testing.T, root string, visit func(path string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "vendor") {
			return filepath.SkipDir
		}
		if !d.IsDir() && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			visit(path)
		}
		return nil
	})
	require.NoError(t, err)
}

// audiencePaths gives the literals and imports of a file that lead to a
// provider's audiences.
func audiencePaths(t *testing.T, path string, src []byte) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, src, 0)
	require.NoError(t, err)
	var found []string
	speaks := strings.Contains(filepath.ToSlash(path), "/dispatcher/provider/")
	for _, imp := range file.Imports {
		name := literal(imp.Path)
		speaks = speaks || strings.HasPrefix(name, "github.com/softcrum/carril/dispatcher/provider")
		if strings.HasPrefix(name, "github.com/resend/") {
			found = append(found, name) // their own client can do all of it
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		if s := literal(lit); audienceOnly.MatchString(s) || speaks && ambiguous.MatchString(s) {
			found = append(found, s)
		}
		return true
	})
	return found
}

func literal(lit *ast.BasicLit) string {
	s, err := strconv.Unquote(lit.Value)
	if err != nil {
		return lit.Value
	}
	return s
}
