// Package docs checks that the documents are true: what docs/acceptance.md
// names is there.
package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A row's evidence is `folder TestName` or `folder TestName/Subtest`.
var evidence = regexp.MustCompile("`([a-z][\\w/.-]*) (Test\\w+|Fuzz\\w+)(?:/(\\w+))?`")

func TestAcceptanceNamesTestsThatExist(t *testing.T) {
	b, err := os.ReadFile("acceptance.md")
	require.NoError(t, err)
	found := evidence.FindAllStringSubmatch(string(b), -1)
	require.NotEmpty(t, found)
	for _, m := range found {
		require.NoError(t, exists(m[1], m[2], m[3]), m[0])
	}
}

// exists looks for a test function, and for the subtest's name as a string or a
// part of one, in a folder's test files.
func exists(folder, test, sub string) error {
	files, err := filepath.Glob(filepath.Join("..", folder, "*_test.go"))
	if err != nil {
		return err
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		src := string(b)
		if strings.Contains(src, "func "+test+"(") {
			if sub == "" || strings.Contains(src, `"`+sub+`"`) {
				return nil
			}
			return fmt.Errorf("%s has no subtest %s in %s", test, sub, f)
		}
	}
	return fmt.Errorf("no test %s in %s", test, folder)
}

func TestEveryCriterionHasARow(t *testing.T) {
	b, err := os.ReadFile("acceptance.md")
	require.NoError(t, err)
	for doc, n := range map[string]int{"FS-CORE-0006": 8, "FS-MSG-0003": 9, "FS-MSG-0005": 8} {
		for i := 1; i <= n; i++ {
			row := regexp.MustCompile(fmt.Sprintf(`(?m)^\| %s AC%d \| .+ \| (.*(Test|Fuzz).*|open.*) \|`, doc, i))
			require.Regexp(t, row, string(b))
		}
	}
	for i := 1; i <= 57; i++ {
		require.Regexp(t, regexp.MustCompile(fmt.Sprintf(`(?m)^\| I%d \| .+ \| (.*(Test|Fuzz).*|open.*) \|`, i)), string(b))
	}
}

// TestTheCheckerCanFail holds the checker itself.
func TestTheCheckerCanFail(t *testing.T) {
	require.Error(t, exists("docs", "TestNobodyWrote", ""))
	require.Error(t, exists("docs", "TestTheCheckerCanFail", "NoSuch"+"Subtest"))
	require.NoError(t, exists("docs", "TestTheCheckerCanFail", ""))
}
