package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const sample = `go: downloading something
{"Action":"run","Package":"a","Test":"TestOne"}
{"Action":"output","Package":"a","Test":"TestOne","Output":"quiet words\n"}
{"Action":"pass","Package":"a","Test":"TestOne"}
{"Action":"pass","Package":"a","Test":"TestOne/Sub"}
{"Action":"output","Package":"a","Test":"TestTwo","Output":"loud words\n"}
{"Action":"fail","Package":"a","Test":"TestTwo"}
{"Action":"skip","Package":"a","Test":"TestThree"}
{"Action":"output","Package":"a","Output":"FAIL\ta\t0.1s\n"}
{"Action":"fail","Package":"a"}
{"Action":"output","Package":"b","Output":"ok  \tb\t0.2s\n"}
{"Action":"pass","Package":"b"}
{"ImportPath":"c","Action":"build-output","Output":"c.go:1: broken\n"}
{"ImportPath":"c","Action":"build-fail"}
{"Action":"fail","Package":"c"}
`

func TestTally(t *testing.T) {
	t.Parallel()
	var sum tally
	var out strings.Builder
	require.NoError(t, sum.read(strings.NewReader(sample), &out))
	require.Equal(t, "failed outside of a test: c\n2 passed, 2 failed, 1 skipped", sum.line())
	require.Equal(t, "go: downloading something\nloud words\nFAIL\ta\t0.1s\nok  \tb\t0.2s\nc.go:1: broken\n", out.String())
}

func TestTallyRecordsItsCounts(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "counts")
	for range 2 {
		require.NoError(t, (&tally{passed: 3, failed: 2, skipped: 1}).record(path))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "3 2 1\n3 2 1\n", string(got))
}

func TestTallyCountsNothingInSilence(t *testing.T) {
	t.Parallel()
	var sum tally
	require.NoError(t, sum.read(strings.NewReader(""), io.Discard))
	require.Equal(t, "0 passed, 0 failed, 0 skipped", sum.line())
}
