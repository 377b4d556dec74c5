package seal_test

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/softcrum/carril/dispatcher/webhook/seal"
)

func parse(t *testing.T, keys ...string) *seal.Keys {
	t.Helper()
	k, err := seal.Parse(keys...)
	require.NoError(t, err)
	return k
}

func TestSeal(t *testing.T) {
	t.Parallel()

	t.Run("OpensForItsOwnerAlone", func(t *testing.T) {
		k := parse(t, seal.NewKey())
		rapid.Check(t, func(t *rapid.T) {
			plain := rapid.SliceOf(rapid.Byte()).Draw(t, "plain")
			sealed := k.Seal("endpoint-1", plain)
			got, err := k.Open("endpoint-1", sealed)
			require.NoError(t, err)
			require.Equal(t, string(plain), string(got))
			_, err = k.Open("endpoint-2", sealed)
			require.ErrorIs(t, err, seal.ErrBroken)
		})
	})

	t.Run("NeverSealsTwiceAlike", func(t *testing.T) {
		k := parse(t, seal.NewKey())
		require.NotEqual(t, k.Seal("o", []byte("x")), k.Seal("o", []byte("x")))
	})

	t.Run("ANewKeySealsWhileTheOldOneOpens", func(t *testing.T) {
		old, fresh := seal.NewKey(), seal.NewKey()
		before := parse(t, "a="+old)
		sealed := before.Seal("o", []byte("secret"))
		require.True(t, strings.HasPrefix(sealed, "a:"))
		during := parse(t, "b="+fresh, "a="+old)
		got, err := during.Open("o", sealed)
		require.NoError(t, err)
		require.Equal(t, "secret", string(got))
		require.False(t, during.Current(sealed))
		require.True(t, during.Current(during.Seal("o", got)))
		_, err = parse(t, "b="+fresh).Open("o", sealed)
		require.ErrorIs(t, err, seal.ErrUnknownKey)
	})

	t.Run("AKeyWithoutANameHasOneOfItsOwn", func(t *testing.T) {
		key := seal.NewKey()
		sealed := parse(t, key).Seal("o", []byte("x"))
		_, err := parse(t, seal.NewKey(), key).Open("o", sealed)
		require.NoError(t, err)
	})

	t.Run("WhatWasChangedDoesNotOpen", func(t *testing.T) {
		k := parse(t, "a="+seal.NewKey())
		sealed := k.Seal("o", []byte("secret"))
		for i := 2; i < len(sealed); i++ {
			flipped := []byte(sealed)
			flipped[i] = map[bool]byte{true: 'B', false: 'A'}[flipped[i] == 'A']
			_, err := k.Open("o", string(flipped))
			require.ErrorIs(t, err, seal.ErrBroken, i)
		}
		for _, bad := range []string{"", "a", "a:", "a:!!", "a:AAAA"} {
			_, err := k.Open("o", bad)
			require.ErrorIs(t, err, seal.ErrBroken, bad)
		}
	})

	t.Run("RefusesWhatIsNoKeyAndQuotesNothing", func(t *testing.T) {
		short := base64.StdEncoding.EncodeToString([]byte("only-sixteen-byt"))
		for _, keys := range [][]string{{}, {""}, {short}, {"a=" + short}, {"not base64 at all"}, {"a=" + seal.NewKey(), "a=" + seal.NewKey()}, {"a b=" + seal.NewKey()}, {"a:b=" + seal.NewKey()}} {
			_, err := seal.Parse(keys...)
			require.Error(t, err, keys)
			require.NotContains(t, err.Error(), short)
		}
	})

	t.Run("PrintsNoKey", func(t *testing.T) {
		k := parse(t, "a="+seal.NewKey())
		require.Equal(t, "seal keys [redacted] seal keys [redacted] seal keys [redacted]", fmt.Sprintf("%v %+v %#v", k, k, k))
	})
}
