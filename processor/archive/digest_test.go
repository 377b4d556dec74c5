package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestDigest holds the digest to arithmetic of 256 bits done by another.
func TestDigest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		lines := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 20), 0, 40).Draw(t, "lines")
		var d, shuffled, parts Digest
		want := new(big.Int)
		for _, l := range lines {
			d.line(l)
			s := sha256.Sum256(l)
			want.Add(want, new(big.Int).SetBytes(s[:]))
		}
		want.Mod(want, new(big.Int).Lsh(big.NewInt(1), 256))
		require.Equal(t, int64(len(lines)), d.Rows)
		require.Equal(t, 0, want.Cmp(new(big.Int).SetBytes(d.SHA256[:])))
		for _, i := range rand.Perm(len(lines)) {
			shuffled.line(lines[i])
			var one Digest
			one.line(lines[i])
			parts.Add(one)
		}
		require.Equal(t, d, shuffled)
		require.Equal(t, d, parts)
		read, err := parseDigest(d.Rows, d.String())
		require.NoError(t, err)
		require.Equal(t, d, read)
		if len(lines) > 0 { // a row that is there twice is seen
			d.line(lines[0])
			d.line(lines[0])
			require.NotEqual(t, shuffled.SHA256, d.SHA256)
		}
	})
	for _, bad := range []string{"", "sum-sha256:", "sum-sha256:zz", "sha256:" + (Digest{}).String()[11:]} {
		_, err := parseDigest(0, bad)
		require.ErrorIs(t, err, ErrCorrupt)
	}
}

// TestCopyParser takes a copy apart that comes in pieces of any size.
func TestCopyParser(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.SliceOfN(rapid.SliceOfN(rapid.Ptr(rapid.SliceOfN(rapid.Byte(), 0, 30), true), 1, 4), 0, 10).Draw(t, "rows")
		b := append(bytes.Clone(copySignature), 0, 0, 0, 0, 0, 0, 0, 3, 'e', 'x', 't')
		for _, r := range rows {
			b = binary.BigEndian.AppendUint16(b, uint16(len(r)))
			for _, f := range r {
				if f == nil {
					b = binary.BigEndian.AppendUint32(b, 0xffffffff)
					continue
				}
				b = append(binary.BigEndian.AppendUint32(b, uint32(len(*f))), *f...)
			}
		}
		b = append(b, 0xff, 0xff)
		var got [][]*[]byte
		p := &copyParser{row: func(fields [][]byte) error {
			var r []*[]byte
			for _, f := range fields {
				if f == nil {
					r = append(r, nil)
					continue
				}
				c := append([]byte{}, f...)
				r = append(r, &c)
			}
			got = append(got, r)
			return nil
		}}
		for len(b) > 0 {
			n := rapid.IntRange(1, len(b)).Draw(t, "piece")
			_, err := p.Write(b[:n])
			require.NoError(t, err)
			b = b[n:]
		}
		require.True(t, p.ended)
		require.Len(t, got, len(rows))
		for i := range rows {
			require.Len(t, got[i], len(rows[i]))
			for k := range rows[i] {
				require.Equal(t, rows[i][k] == nil, got[i][k] == nil)
				if rows[i][k] != nil {
					require.True(t, bytes.Equal(*rows[i][k], *got[i][k]))
				}
			}
		}
		_, err := p.Write([]byte{0})
		require.ErrorIs(t, err, errCopy)
	})
	p := &copyParser{}
	_, err := p.Write([]byte("SELECT"))
	require.ErrorIs(t, err, errCopy)
}
