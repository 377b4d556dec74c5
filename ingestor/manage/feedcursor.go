package manage

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/google/uuid"
)

// feedCursor is how far a reader of the feed has come in each lane, and the lane
// whose turn it is.
type feedCursor struct {
	turn  int32
	lanes map[int32]lanePosition
}

// lanePosition is in a lane's life: its incarnation, and the last sequence that
// was read.
type lanePosition struct {
	incarnation int32
	seq         int64
}

// sealer makes feed cursors that nobody else can make or read: sequences are
// counted over all tenants, and are no tenant's business.
type sealer struct{ aead cipher.AEAD }

func newSealer(key []byte) sealer {
	m := hmac.New(sha256.New, key)
	m.Write([]byte("carril feed cursors"))
	block, err := aes.NewCipher(m.Sum(nil))
	if err != nil { // 32 bytes are a key
		panic(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return sealer{aead}
}

const feedVersion = 1

// seal makes the cursor of a tenant.
func (s sealer) seal(c feedCursor, tenant uuid.UUID) string {
	b := binary.AppendUvarint([]byte{feedVersion}, uint64(c.turn))
	for _, lane := range slices.Sorted(maps.Keys(c.lanes)) {
		p := c.lanes[lane]
		b = binary.AppendUvarint(b, uint64(lane))
		b = binary.AppendUvarint(b, uint64(p.incarnation))
		b = binary.AppendUvarint(b, uint64(p.seq))
	}
	nonce := make([]byte, s.aead.NonceSize())
	_, _ = rand.Read(nonce) // it never fails
	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nonce, nonce, b, tenant[:]))
}

// open reads a cursor; ok is false for one that is not ours, or another tenant's.
func (s sealer) open(text string, tenant uuid.UUID) (c feedCursor, ok bool) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) < s.aead.NonceSize() {
		return c, false
	}
	b, err = s.aead.Open(nil, b[:s.aead.NonceSize()], b[s.aead.NonceSize():], tenant[:])
	if err != nil || len(b) == 0 || b[0] != feedVersion {
		return c, false
	}
	b = b[1:]
	next := func() uint64 {
		v, n := binary.Uvarint(b)
		b = b[max(n, 0):]
		return v
	}
	c = feedCursor{turn: int32(next()), lanes: map[int32]lanePosition{}}
	for len(b) > 0 {
		lane := int32(next())
		c.lanes[lane] = lanePosition{incarnation: int32(next()), seq: int64(next())}
	}
	return c, true
}
