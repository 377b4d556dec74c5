package retention

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/internal/db/processordb"
)

// Status is what is due, what is on its way, and what went lately.
type Status struct {
	Storage bool    `json:"storage"` // whether there is where to export to
	Due     []Due   `json:"due"`     // with rows, attached
	Open    []Entry `json:"open"`    // detached and not dropped
	Gone    []Entry `json:"gone"`    // the last that were dropped
}

// Due is a leaf that the next run takes.
type Due struct {
	Table           string    `json:"table"`
	From            time.Time `json:"from"`
	To              time.Time `json:"to"`
	RetentionMonths int16     `json:"retention_months"`
	Waits           string    `json:"waits_for,omitempty"` // what must come first
}

// Entry is a row of the ledger.
type Entry struct {
	Run             uuid.UUID  `json:"run"`
	Table           string     `json:"table"`
	State           string     `json:"state"`
	From            time.Time  `json:"from"`
	To              time.Time  `json:"to"`
	RetentionMonths int16      `json:"retention_months"`
	Rows            *int64     `json:"rows,omitempty"` // exported
	Moved           int64      `json:"moved,omitempty"`
	Manifest        string     `json:"manifest,omitempty"`
	Superseded      []string   `json:"superseded,omitempty"` // manifests that stand for nothing any more
	DetachedAt      time.Time  `json:"detached_at"`
	DroppedAt       *time.Time `json:"dropped_at,omitempty"`
	Trouble         string     `json:"trouble,omitempty"`
}

// Status changes nothing; recent bounds what went lately. A run now would take
// what is due and waits for nothing.
func (j *Job) Status(ctx context.Context, recent int) (*Status, error) {
	if err := j.look(ctx); err != nil {
		return nil, err
	}
	s := &Status{Storage: j.deps.Exporter != nil, Due: []Due{}, Open: []Entry{}, Gone: []Entry{}}
	leaves, err := dueLeaves(ctx, j.deps.Pool, j.now())
	if err != nil {
		return nil, err
	}
	for _, d := range leaves {
		if d.Empty {
			continue
		}
		reason, err := j.reasonToWait(ctx, d)
		if err != nil {
			return nil, err
		}
		s.Due = append(s.Due, Due{d.Name, d.From.UTC(), d.To.UTC(), d.RetentionMonths, reason})
	}
	db := processordb.New(j.deps.Pool)
	open, err := db.OpenLeaves(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the retention ledger: %w", err)
	}
	for _, l := range open {
		s.Open = append(s.Open, entry(l))
	}
	gone, err := db.RecentLeaves(ctx, int64(recent))
	if err != nil {
		return nil, fmt.Errorf("read the retention ledger: %w", err)
	}
	for _, l := range gone {
		s.Gone = append(s.Gone, entry(l))
	}
	return s, nil
}

func entry(l processordb.CoreRetentionLedger) Entry {
	e := Entry{Run: l.RunID, Table: l.Leaf, State: l.State, From: l.LowerBound.UTC(), To: l.UpperBound.UTC(), RetentionMonths: l.RetentionMonths,
		Rows: l.Rows, Moved: l.Moved, Superseded: l.Superseded, DetachedAt: l.DetachedAt.UTC(), DroppedAt: l.DroppedAt}
	if l.Object != nil {
		e.Manifest = *l.Object
	}
	if l.Trouble != nil {
		e.Trouble = *l.Trouble
	}
	return e
}
