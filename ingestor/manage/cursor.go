package manage

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"time"

	"github.com/google/uuid"
)

// position is the last row of a page: where the next one begins behind.
type position struct {
	at time.Time
	id uuid.UUID
}

// signer makes cursors that nobody else can: one holds for its tenant and the
// list that it was given for, and for no other.
type signer struct{ key []byte }

const cursorBytes = 8 + 16 + sha256.Size

// sign makes a cursor of a position in the list that of names.
func (s signer) sign(p position, of string) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(p.at.UnixMicro()))
	b = append(b, p.id[:]...)
	return base64.RawURLEncoding.EncodeToString(append(b, s.mac(b, of)...))
}

// open reads a cursor; ok is false for one that is not ours, or another list's.
func (s signer) open(cursor, of string) (p position, ok bool) {
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(b) != cursorBytes || !hmac.Equal(b[24:], s.mac(b[:24], of)) {
		return position{}, false
	}
	copy(p.id[:], b[8:24])
	p.at = time.UnixMicro(int64(binary.BigEndian.Uint64(b))).UTC()
	return p, true
}

func (s signer) mac(b []byte, of string) []byte {
	m := hmac.New(sha256.New, s.key)
	m.Write(b)
	m.Write([]byte(of))
	return m.Sum(nil)
}
