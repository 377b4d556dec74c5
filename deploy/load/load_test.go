// Package load holds load profiles for tools of others; the test reads what
// nothing here runs.
package load

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// stub stands for k6: enough of its modules for a script to run once.
const stub = `
const sent = [];
const noop = () => {};
globalThis.__ENV = { API: 'http://127.0.0.1', KEY: 'ck_test', SIZE: '3' };
const http = { post: (url, body, params) => { sent.push({ url, body, params }); return { status: 202 }; } };
const check = (res, checks) => Object.values(checks).every((f) => f(res));
const exec = { scenario: { iterationInTest: 7 } };
class Counter { add() { throw new Error('an event was not accepted'); } }
`

// withoutImports puts the stub in the place of k6's modules, and names the turn.
func withoutImports(script string) string {
	imports := regexp.MustCompile(`(?m)^import .*$`)
	return stub + strings.Replace(imports.ReplaceAllString(script, ""), "export default function ()", "function turn()", 1)
}

// Each script parses as k6 takes it, and one turn of it sends what the API takes.
func TestScripts(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no node to parse them with")
	}
	for name, want := range map[string]string{
		"track.js":    `path === '/v1/core/track' && body.event_name && body.properties && text.length === 400`,
		"identify.js": `path === '/v1/core/identify' && body.traits && !body.event_name && text.length === 400`,
		"batch.js":    `path === '/v1/core/batch' && body.events.length === 3 && body.events.every((e) => e.type === 'track' && e.properties) && new Set(body.events.map((e) => e.idempotency_key)).size === 3`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script, err := os.ReadFile(name)
			require.NoError(t, err)
			module := filepath.Join(t.TempDir(), "script.mjs") // a module, as k6 takes it
			require.NoError(t, os.WriteFile(module, script, 0o600))
			out, err := exec.CommandContext(t.Context(), node, "--check", module).CombinedOutput()
			require.NoError(t, err, "%s", out)

			require.NoError(t, os.WriteFile(module, []byte(withoutImports(string(script))+`
turn();
const call = sent[0], text = call.body;
const path = call.url.slice(__ENV.API.length), body = JSON.parse(text);
if (sent.length !== 1 || call.params.headers.Authorization !== 'Bearer ck_test' || !(`+want+`)) throw new Error(text);
`), 0o600))
			out, err = exec.CommandContext(t.Context(), node, module).CombinedOutput()
			require.NoError(t, err, "%s", out)
		})
	}
}
