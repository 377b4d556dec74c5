// Package prometheus holds the alert rules of a deployment and what they are
// tested with; the Go test holds them against the metrics that the code has.
package prometheus

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(b)
}

func all(re, text string) []string {
	var found []string
	for _, m := range regexp.MustCompile(re).FindAllStringSubmatch(text, -1) {
		if !slices.Contains(found, m[1]) {
			found = append(found, m[1])
		}
	}
	return found
}

// An alert on a metric that nobody has is an alert that never comes.
func TestAlertsAreAboutMetricsThatThereAre(t *testing.T) {
	t.Parallel()
	var metrics []string
	require.NoError(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (strings.HasPrefix(d.Name(), ".") && d.Name() != "..") {
			if d != nil && d.IsDir() && err == nil {
				return fs.SkipDir
			}
			return err
		}
		if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			metrics = append(metrics, all(`Name:\s*"(carril_[a-z_]+)"`, read(t, path))...)
		}
		return nil
	}))
	require.Greater(t, len(metrics), 50)
	for _, name := range all(`(carril_[a-z_]+)`, read(t, "alerts.yml")) {
		require.Contains(t, metrics, strings.TrimSuffix(name, "_bucket"))
	}
}

// Each alert has a case in which it comes and one in which it does not.
func TestEachAlertIsTestedBothWays(t *testing.T) {
	t.Parallel()
	tests := read(t, "alerts_test.yml")
	for _, name := range all(`- alert: (\w+)`, read(t, "alerts.yml")) {
		require.Contains(t, tests, "alertname: "+name+"}", "quiet")
		require.Contains(t, tests, `alertname="`+name+`",alertstate="firing"`)
	}
}

func TestAlertsByPromtool(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("no promtool to run them with (package prometheus)")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}
