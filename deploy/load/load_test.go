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

// stubOfBlast stands for k6 and for the API that the profile of two tenants asks.
const stubOfBlast = `
const sent = [], trends = {};
globalThis.__ENV = { API: 'http://127.0.0.1', KEY: 'ck_b', BLAST_KEY: 'ck_a', TEMPLATE: 'news' };
const answer = (status, body) => ({ status, json: (name) => (name ? body[name] : body) });
const http = {
  post: (url, body, params) => {
    sent.push({ path: url.slice(__ENV.API.length), body: JSON.parse(body), key: params.headers.Authorization });
    return url.endsWith('/blasts') ? answer(201, { blast_id: 'b1' }) : url.endsWith('/start') ? answer(200, {}) : answer(202, {});
  },
  batch: (all) => all.map(([method, url, body, params]) => http.post(url, body, params)),
  get: (url) => url.includes('/sends?')
    ? answer(200, url.includes('cursor=') ? { sends: [] } : { next_cursor: 'c', sends: sent.filter((s) => s.path.endsWith('/messages')).map((s, i) => (
      { send_id: 's' + i, address: s.body.recipients[0].address, requested_at: '2026-11-01T06:00:00.000Z' })) })
    : answer(200, { history: [{ status: 'sent', recorded_at: '2026-11-01T06:00:00.250Z' }, { status: 'delivered', recorded_at: '2026-11-01T06:00:09Z' }] }),
};
const check = (res, checks) => Object.values(checks).every((f) => f(res));
const sleep = () => {};
const exec = { scenario: { iterationInTest: 7 } };
class Counter { add() { throw new Error('a code was not accepted or not sent'); } }
class Trend { constructor(name) { this.got = trends[name] = []; } add(v) { this.got.push(v); } }
`

// The profile of a blast beside codes starts the blast, asks for codes alone and
// ten at once, and finds out when each went.
func TestBlastVsOTPScript(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no node to parse it with")
	}
	script, err := os.ReadFile("blast-vs-otp.js")
	require.NoError(t, err)
	module := filepath.Join(t.TempDir(), "script.mjs")
	require.NoError(t, os.WriteFile(module, script, 0o600))
	out, err := exec.CommandContext(t.Context(), node, "--check", module).CombinedOutput()
	require.NoError(t, err, "%s", out)

	body := regexp.MustCompile(`(?m)^import .*$`).ReplaceAllString(string(script), "")
	body = strings.Replace(body, "export default function (data)", "function turn(data)", 1)
	require.NoError(t, os.WriteFile(module, []byte(stubOfBlast+body+`
const expect = (ok, what) => { if (!ok) throw new Error(what + ' ' + JSON.stringify(sent)); };
const data = setup();
turn(data);
burst(data);
teardown(data);
expect(sent[0].path === '/v1/messaging/blasts' && sent[0].body.audience.type === 'contacts' && sent[0].key === 'Bearer ck_a', 'the blast');
expect(sent[1].path === '/v1/messaging/blasts/b1/start' && sent[1].key === 'Bearer ck_a', 'its start');
const codes = sent.slice(2);
expect(codes.length === 11 && codes.every((c) => c.path === '/v1/messaging/messages' && c.key === 'Bearer ck_b' && c.body.category === 'transactional'), 'the codes');
expect(new Set(codes.map((c) => c.body.idempotency_key)).size === 11, 'keys of their own');
expect(trends.code_to_provider.join() === '250' && trends.burst_code_to_provider.length === 10, 'latencies');
expect(options.scenarios.bursts.exec === 'burst' && options.scenarios.codes.rate === 1, 'scenarios');
`), 0o600))
	out, err = exec.CommandContext(t.Context(), node, module).CombinedOutput()
	require.NoError(t, err, "%s", out)
}
