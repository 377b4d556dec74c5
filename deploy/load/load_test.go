// Package load holds load profiles for tools of others; the test reads what
// nothing here runs.
package load

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTrackScript(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no node to parse it with")
	}
	script, err := os.ReadFile("track.js")
	require.NoError(t, err)
	module := filepath.Join(t.TempDir(), "track.mjs") // a module, as k6 takes it
	require.NoError(t, os.WriteFile(module, script, 0o600))
	out, err := exec.CommandContext(t.Context(), node, "--check", module).CombinedOutput()
	require.NoError(t, err, "%s", out)
}
