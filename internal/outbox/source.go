package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Source reads what a lane's store holds beyond a sequence, in order. since is
// a lower bound of when the rows were written.
type Source interface {
	Page(ctx context.Context, lane Lane, after int64, since time.Time, limit int) ([]Item, error)
}

// TableSource reads core.outbox.
type TableSource struct{ Pool *pgxpool.Pool }

// txMargin is longer than any transaction may last: sequences are given in
// commit order, but a row's time is its transaction's start.
const txMargin = time.Hour

// Page reads up to limit messages of the lane after a sequence.
func (s TableSource) Page(ctx context.Context, lane Lane, after int64, since time.Time, limit int) ([]Item, error) {
	const sql = `SELECT lane_seq, written_at, topic, key, value, headers FROM core.outbox
WHERE written_at >= $1 AND lane = $2 AND lane_seq > $3 ORDER BY lane_seq LIMIT $4`
	rows, err := s.Pool.Query(ctx, sql, since.Add(-txMargin), lane.ID, after, limit)
	if err != nil {
		return nil, fmt.Errorf("page lane %d: %w", lane.ID, err)
	}
	items, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Item, error) {
		var it Item
		var hs []byte
		if err := row.Scan(&it.Seq, &it.WrittenAt, &it.Topic, &it.Key, &it.Value, &hs); err != nil {
			return it, err
		}
		it.Headers, err = decodeHeaders(hs)
		return it, err
	})
	if err != nil {
		return nil, fmt.Errorf("page lane %d: %w", lane.ID, err)
	}
	return items, nil
}
