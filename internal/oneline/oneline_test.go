package oneline_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/oneline"
)

func TestFits(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{
		"": true, "Two people, one phone": true, "Año – 日本 😀": true, "\ufffd": true, "1234567890": true, " a ": true,
		"a\nb": false, "a\rb": false, "a\tb": false, "\x00": false, "\x1b[2J": false, "\x7f": false, "\u0085": false, "\u2028": false, "\u2029": false, "\xff": false, "a\xed\xa0\x80": false,
	} {
		require.Equal(t, want, oneline.Fits(s, 100), "%q", s)
	}
	require.True(t, oneline.Fits("é", 2))
	require.False(t, oneline.Fits("é", 1), "bytes, not characters")
}
