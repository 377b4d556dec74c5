package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// preparing is a stage that prepares its batches.
type preparing struct {
	*effects
	mu      sync.Mutex
	panics  bool
	refuses string // the value of a record that the stage cannot apply
	failed  bool
	ahead   int // batches that came prepared
	late    int // and those that did not
	wrong   error
}

type readied struct {
	first int64
	n     int
}

func (p *preparing) Prepare(_ context.Context, records []Record) any {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.panics {
		panic("test")
	}
	return readied{records[0].Offset, len(records)}
}

func (p *preparing) Apply(ctx context.Context, tx pgx.Tx, b *Batch) error {
	if err := p.note(b); err != nil {
		return err
	}
	return p.effects.Apply(ctx, tx, b)
}

func (p *preparing) note(b *Batch) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.Prepared == nil {
		p.late++
	} else if got, want := b.Prepared, (readied{b.Records[0].Offset, len(b.Records)}); got != want {
		p.wrong = fmt.Errorf("%v was prepared for %v", got, want)
	} else {
		p.ahead++
	}
	for _, r := range b.Records {
		if r.Value == p.refuses {
			if p.failed && b.Prepared != nil {
				p.wrong = errors.New("what was used up came again")
			}
			if !p.failed {
				p.failed = true
				return fmt.Errorf("%w: test", ErrWait)
			}
			return fmt.Errorf("%w: test", ErrPoison)
		}
	}
	return nil
}

func TestPrepare(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, stage *preparing) *bench {
		b := newBench(t, 1)
		stage.effects = b.stage
		b.send(0, values("a", 200)...)
		b.loop(func(c *Config, d *Deps) { c.MaxRecords, c.CatchupRecords, d.Handler = 20, 40, stage })
		return b
	}

	t.Run("GivesEachBatchWhatWasPreparedOfItsRecords", func(t *testing.T) {
		t.Parallel()
		stage := &preparing{}
		b := run(t, stage)
		b.awaitEffects(200)
		b.appliedOnce(200)
		stage.mu.Lock()
		defer stage.mu.Unlock()
		require.NoError(t, stage.wrong)
		require.Positive(t, stage.ahead)
		require.Zero(t, stage.late)
	})

	t.Run("GivesNothingToASecondAttemptNorToAPartOfABatch", func(t *testing.T) {
		t.Parallel()
		stage := &preparing{refuses: "a-00100"}
		b := run(t, stage)
		b.awaitEffects(199) // and one dead letter
		b.eventually("the dead letter", 60*time.Second, func() bool { return b.count(`SELECT count(*) FROM core.dead_letters`) == 1 })
		stage.mu.Lock()
		defer stage.mu.Unlock()
		require.NoError(t, stage.wrong)
		require.Greater(t, stage.late, 2, "the second attempt and its halves")
	})

	t.Run("GoesOnWithoutWherePreparationPanics", func(t *testing.T) {
		t.Parallel()
		stage := &preparing{panics: true}
		b := run(t, stage)
		b.awaitEffects(200)
		b.appliedOnce(200)
		stage.mu.Lock()
		defer stage.mu.Unlock()
		require.Zero(t, stage.ahead)
	})
}
