package archive_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/processor/archive"
)

// snippets are the code blocks of docs/analysts.md below a heading.
func snippets(t *testing.T, heading, language string) []string {
	t.Helper()
	b, err := os.ReadFile("../../docs/analysts.md")
	require.NoError(t, err)
	_, section, ok := strings.Cut(string(b), heading+"\n")
	require.True(t, ok, "%q stands in docs/analysts.md", heading)
	section, _, _ = strings.Cut(section, "\n##")
	var all []string
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(section, -1) {
		all = append(all, m[1])
	}
	require.NotEmpty(t, all)
	return all
}

// folder is where an export's manifest lies on the disk.
func (s *shop) folder(manifest string) string {
	return filepath.Join(strings.TrimPrefix(s.cfg.URL, "file://"), filepath.Dir(manifest))
}

func runIn(t *testing.T, dir string, command ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return strings.TrimSpace(string(out))
}

// TestAnalystsShell (FS-CORE-0006 AC7) runs what docs/analysts.md says of zstd,
// zcat and jq, where they are installed.
func TestAnalystsShell(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"bash", "jq", "zstd", "zcat", "sha256sum", "xargs"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	s := newShop(t)
	for _, tenant := range s.tenants {
		s.fill(tenant, month, 8)
	}
	l := s.detach()
	blocks := snippets(t, "### With zstd and jq", "sh")
	require.Len(t, blocks, 2)
	for i, c := range []archive.Compression{archive.Zstd, archive.Gzip} {
		a := s.archive(archive.Config{Compression: c})
		l.RetentionMonths += i // another folder
		name, _, err := a.Export(t.Context(), l)
		require.NoError(t, err)
		out := runIn(t, s.folder(name), "bash", "-euo", "pipefail", "-c", blocks[i])
		require.Equal(t, []string{"24\n24\n24", "24"}[i], strings.Join(strings.Fields(out), "\n"))
	}
	// The checksum is checked: a byte that changed is seen.
	name, _, err := s.archive(archive.Config{}).Export(t.Context(), s.leaf)
	require.NoError(t, err)
	object := filepath.Join(s.folder(name), s.manifest(name).Objects[0].Name)
	b, err := os.ReadFile(object)
	require.NoError(t, err)
	b[len(b)/2] ^= 1
	require.NoError(t, os.WriteFile(object, b, 0o600))
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", blocks[0])
	cmd.Dir = s.folder(name)
	require.Error(t, cmd.Run())
}
