package outbox

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/softcrum/carril/internal/testkit"
)

func TestHeaders(t *testing.T) {
	t.Parallel()

	t.Run("ComeBackToTheByte", rapid.MakeCheck(func(t *rapid.T) {
		text := rapid.OneOf(rapid.StringMatching(`[ -~]{0,40}`), rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }))
		want := rapid.SliceOf(rapid.Custom(func(t *rapid.T) kgo.RecordHeader {
			return kgo.RecordHeader{Key: printable(text.Draw(t, "key")), Value: []byte(text.Draw(t, "value"))}
		})).Draw(t, "headers")
		kept := EncodeHeaders(want)
		var pairs [][]string
		require.NoError(t, json.Unmarshal(kept, &pairs), "it is JSON for whoever reads the table")
		require.Len(t, pairs, len(want))
		got, err := DecodeHeaders(kept)
		require.NoError(t, err)
		require.Len(t, got, len(want))
		for i := range want {
			require.Equal(t, want[i].Key, got[i].Key)
			require.Equal(t, string(want[i].Value), string(got[i].Value))
		}
	}))

	t.Run("AreReadAsAnOlderVersionWritesThem", func(t *testing.T) {
		t.Parallel()
		pool := testkit.Pool(t)
		const jsonb = "\x01" + `[["ce_id","1"]]` // as a COPY has it
		_, err := pool.Exec(t.Context(), `INSERT INTO core.outbox (lane, lane_seq, topic, key, value, headers) VALUES (1, 1, 't', '', '', $1)`, []byte(jsonb))
		require.NoError(t, err)
		var kept []byte
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT headers FROM core.outbox`).Scan(&kept))
		got, err := DecodeHeaders(kept)
		require.NoError(t, err)
		require.Equal(t, []kgo.RecordHeader{{Key: "ce_id", Value: []byte("1")}}, got)
	})

	t.Run("AreReadHoweverTheyAreSpaced", func(t *testing.T) {
		t.Parallel()
		for _, kept := range []string{`[["a", "1"], ["b", "2"]]`, `[["a","1"],["b","2"]]`, "[[\"a\",\"1\"],\n[\"\\u0062\",\"2\"]]"} {
			got, err := DecodeHeaders([]byte(kept))
			require.NoError(t, err)
			require.Equal(t, []kgo.RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "b", Value: []byte("2")}}, got)
		}
	})

	t.Run("AreRefusedWhereTheyAreNone", func(t *testing.T) {
		t.Parallel()
		for _, kept := range []string{``, `[`, `[[`, `[["a"]]`, `[["a","1"]`, `[["a","1"],]`, `[["a","1"],["b"]]`, `[["a","1","base63"]]`, `[["a","%","base64"]]`, `[["a","1"]]x`, `{"a":"1"}`} {
			_, err := DecodeHeaders([]byte(kept))
			require.Error(t, err, kept)
		}
	})
}
