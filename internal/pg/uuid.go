package pg

import (
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// registerUUID has a connection send and read uuid.UUID as the 16 bytes that
// both sides keep. pgx would take its driver.Valuer and sql.Scanner, through
// text and back: two thirds of what the append stage spends outside PostgreSQL.
func registerUUID(m *pgtype.Map) {
	t := &pgtype.Type{Name: "uuid", OID: pgtype.UUIDOID, Codec: uuidCodec{}}
	m.RegisterType(t)
	m.RegisterType(&pgtype.Type{Name: "_uuid", OID: pgtype.UUIDArrayOID, Codec: &pgtype.ArrayCodec{ElementType: t}})
}

// uuidCodec is pgx's own but for uuid.UUID in the binary format.
type uuidCodec struct{ pgtype.UUIDCodec }

// PlanEncode implements pgtype.Codec.
func (c uuidCodec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if _, ok := value.(uuid.UUID); ok && format == pgtype.BinaryFormatCode {
		return encodeUUID{}
	}
	return c.UUIDCodec.PlanEncode(m, oid, format, value)
}

// PlanScan implements pgtype.Codec.
func (c uuidCodec) PlanScan(m *pgtype.Map, oid uint32, format int16, target any) pgtype.ScanPlan {
	if _, ok := target.(*uuid.UUID); ok && format == pgtype.BinaryFormatCode {
		return scanUUID{}
	}
	return c.UUIDCodec.PlanScan(m, oid, format, target)
}

type encodeUUID struct{}

func (encodeUUID) Encode(value any, buf []byte) ([]byte, error) {
	id, ok := value.(uuid.UUID)
	if !ok {
		return nil, fmt.Errorf("encode a uuid: %T is none", value)
	}
	return append(buf, id[:]...), nil
}

type scanUUID struct{}

// Scan leaves the target as it is where there is NULL, as uuid.UUID's own Scan
// does.
func (scanUUID) Scan(src []byte, target any) error {
	id, ok := target.(*uuid.UUID)
	switch {
	case src == nil:
		return nil
	case !ok || len(src) != len(id):
		return fmt.Errorf("scan a uuid of %d bytes into %T", len(src), target)
	}
	copy(id[:], src)
	return nil
}
