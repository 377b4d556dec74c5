package apikey

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestKey(t *testing.T) {
	t.Parallel()
	t.Run("IsParsedAsItWasMade", func(t *testing.T) {
		t.Parallel()
		text, made, err := Generate("live")
		require.NoError(t, err)
		require.Regexp(t, `^ck_live_[0-9A-Za-z]{12}_[0-9A-Za-z]{49}$`, text)
		parsed, ok := Parse(text)
		require.True(t, ok)
		require.Equal(t, made, parsed)
		require.NotContains(t, text[:len("ck_live_")+idLen], made.Hash)
	})
	t.Run("IsNeverTheSameTwice", func(t *testing.T) {
		t.Parallel()
		seen := map[string]bool{}
		for range 1_000 {
			text, k, err := Generate("test")
			require.NoError(t, err)
			require.False(t, seen[text] || seen[k.ID])
			seen[text], seen[k.ID] = true, true
		}
	})
	t.Run("IsRefusedWhenACharacterIsAnother", func(t *testing.T) { // bad inputs row 45: bad checksum
		t.Parallel()
		text, _, err := Generate("live")
		require.NoError(t, err)
		rapid.Check(t, func(t *rapid.T) {
			i := rapid.IntRange(0, len(text)-1).Draw(t, "at")
			c := rapid.Byte().Draw(t, "byte")
			_, ok := Parse(text[:i] + string([]byte{c}) + text[i+1:])
			require.Equal(t, c == text[i], ok)
		})
	})
	t.Run("IsRefusedInAnyOtherForm", func(t *testing.T) {
		t.Parallel()
		text, _, err := Generate("live")
		require.NoError(t, err)
		for _, bad := range []string{"", "ck_", "ck_live_", text[1:], text[:len(text)-1], text + "0", " " + text, strings.ToUpper(text),
			strings.Replace(text, "ck_live", "ck_", 1), strings.Replace(text, "live", strings.Repeat("l", 13), 1), strings.Repeat("k", 10_000), text + strings.Repeat("k", 10_000)} {
			_, ok := Parse(bad)
			require.False(t, ok, bad)
		}
	})
	t.Run("IsNotMadeForAnEnvironmentThatIsNone", func(t *testing.T) {
		t.Parallel()
		for _, env := range []string{"", "Live", "a_b", strings.Repeat("a", 13)} {
			_, _, err := Generate(env)
			require.Error(t, err, env)
		}
	})
}

func TestRandomDigitsAreEvenlySpread(t *testing.T) {
	t.Parallel()
	count := map[rune]int{}
	const n = 62_000
	for _, c := range random(n) {
		count[c]++
	}
	require.Len(t, count, 62)
	for c, k := range count { // 1,000 each, standard deviation 31; a modulo would give the first eight 1,250
		require.InDelta(t, n/62, k, 200, string(c))
	}
}
