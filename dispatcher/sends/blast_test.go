package sends

import (
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/schemas"
)

// Who writes a blast's recipients locks them in the order of their positions: providers'
// reports of the same ones may be written meanwhile.
func TestBlastRowsAreLockedInOneOrder(t *testing.T) {
	t.Parallel()
	blast, other := uuid.MustParse("00000000-0000-4000-8000-000000000001"), uuid.MustParse("00000000-0000-4000-8000-000000000002")
	first, second := uuid.New(), uuid.New()
	type statement struct {
		sql       string
		blast     uuid.UUID
		positions []int64
	}
	queued := func(r blastRows) (all []statement) {
		var b pgx.Batch
		r.queue(&b)
		for _, q := range b.QueuedQueries {
			all = append(all, statement{q.SQL, q.Arguments[0].(uuid.UUID), q.Arguments[1].([]int64)})
		}
		return all
	}
	message := func(of uuid.UUID, position int) schemas.JobMessage {
		return schemas.JobMessage{BlastID: &of, RecipientIndex: position}
	}
	t.Run("AJobAfterTheOther", func(t *testing.T) {
		t.Parallel()
		var r blastRows
		for _, p := range []int{7, 5, 6} {
			r.add(second, message(blast, p), StateSent, "")
		}
		for _, p := range []int{0, 1} {
			r.add(first, message(blast, p), StateSent, "")
			r.add(first, message(other, p), StateSent, "")
		}
		r.add(first, schemas.JobMessage{RecipientIndex: 3}, StateSent, "") // of no blast
		require.Equal(t, []statement{{blastOutcomeSQL, blast, []int64{0, 1}}, {blastOutcomeSQL, blast, []int64{5, 6, 7}}, {blastOutcomeSQL, other, []int64{0, 1}}}, queued(r))
	})
	t.Run("AllAtFirstWhereAJobHasSeveralOutcomes", func(t *testing.T) {
		t.Parallel()
		var r blastRows
		for p := range 6 {
			outcome := []string{StateSent, StateFailed}[p%2]
			r.add(first, message(blast, p), outcome, "")
		}
		all := queued(r)
		require.Len(t, all, 3)
		require.Equal(t, blastLockSQL, all[0].sql)
		require.ElementsMatch(t, []int64{0, 1, 2, 3, 4, 5}, all[0].positions)
		require.Equal(t, []statement{{blastOutcomeSQL, blast, []int64{0, 2, 4}}, {blastOutcomeSQL, blast, []int64{1, 3, 5}}}, all[1:])
	})
}
