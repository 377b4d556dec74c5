package retention

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Leaf is a detached table on its way out: one retention class of one month.
type Leaf struct {
	Run             uuid.UUID // of this export; another one where rows changed after an export
	Parent          string    // core.tracked_events, messaging.sends or messaging.send_status_history
	Table           string    // schema.table as it stands
	OID             uint32
	From, To        time.Time // bounds, in UTC; To is not in it
	RetentionMonths int
}

// Digest says what a table, or its export, holds.
type Digest struct {
	Rows   int64
	SHA256 [32]byte
}

// Exporter brings a leaf to storage; processor/archive has the one of the product.
// A call may fail or die at any moment and is made again.
type Exporter interface {
	// Export writes the leaf's objects, and the manifest last. A rerun after a
	// crash gives new objects, or finds the finished manifest of the same run.
	Export(ctx context.Context, l Leaf) (manifest string, d Digest, err error)
	// Verify reads the stored objects back.
	Verify(ctx context.Context, manifest string) (Digest, error)
	// DigestTable is of the table as it stands, under the caller's lock: the same
	// rows and digest as Export's.
	DigestTable(ctx context.Context, tx pgx.Tx, table string) (Digest, error)
	// Discard removes an export that stands for nothing, whole or in part; none is
	// left there in the end.
	Discard(ctx context.Context, manifest string) error
}
