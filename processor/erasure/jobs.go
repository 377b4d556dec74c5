package erasure

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/internal/identifier"
	"github.com/softcrum/carril/schemas"
)

// jobPlace is where a walk through the jobs stands.
type jobPlace struct {
	At     time.Time `json:"at"`
	Worker string    `json:"worker"`
	ID     uuid.UUID `json:"id"`
}

// jobsPage bounds the rows of a page of jobs: a batch's payload holds 100 messages.
const jobsPage = 50

// jobs takes the person out of the rails: what waits is blocked, what is done is
// emptied.
func (j *Job) jobs(ctx context.Context, tx pgx.Tx, e *erasure, at json.RawMessage) (page, error) {
	p, from := page{}, jobPlace{At: longAgo}
	db := processordb.New(tx)
	if len(at) == 0 {
		n, err := dequeue(ctx, db, e)
		if err != nil {
			return p, err
		}
		p.rows += n
	} else if err := json.Unmarshal(at, &from); err != nil {
		return p, fmt.Errorf("read where the erasure stands: %w", err)
	}
	seek, err := e.seeking(ctx, db)
	if err != nil {
		return p, err
	}
	rows, err := db.PageJobs(ctx, processordb.PageJobsParams{At: from.At, Worker: from.Worker, Behind: from.ID, Of: e.tenant,
		Contacts: append(contactTexts(e.contacts), uuid.Nil.String()), MaxRows: jobsPage})
	if err != nil {
		return p, fmt.Errorf("find jobs: %w", err)
	}
	for _, r := range rows {
		n, later, err := e.job(ctx, db, seek, r)
		if err != nil {
			return p, err
		}
		p.rows += n
		p.later = p.later || later
	}
	if len(rows) == jobsPage {
		last := rows[len(rows)-1]
		p.next = jobPlace{last.IDTime, last.Worker, last.JobID}
	}
	return p, nil
}

func contactTexts(ids []uuid.UUID) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = id.String()
	}
	return out
}

// dequeue drops what the feeder has not frozen yet.
func dequeue(ctx context.Context, db *processordb.Queries, e *erasure) (int, error) {
	rows, err := db.DropMarketingQueue(ctx, processordb.DropMarketingQueueParams{TenantID: e.tenant, Contacts: contactTexts(e.contacts)})
	if err != nil {
		return 0, fmt.Errorf("drop queued messages: %w", err)
	}
	for _, r := range rows {
		var m schemas.JobMessage
		if err := json.Unmarshal([]byte(r.Payload), &m); err != nil {
			return 0, fmt.Errorf("read a queued message: %w", err)
		}
		if err := block(ctx, db, r.Channel, m); err != nil {
			return 0, err
		}
	}
	return len(rows), nil
}

// block records that a message without a send will not be sent.
func block(ctx context.Context, db *processordb.Queries, channel string, m schemas.JobMessage) error {
	err := db.TurnDecision(ctx, processordb.TurnDecisionParams{ReceivedAt: m.RequestedAt, RequestID: m.RequestID, RecipientIndex: int32(m.RecipientIndex), Channel: channel})
	if err != nil {
		return fmt.Errorf("turn a decision: %w", err)
	}
	if m.BlastID == nil {
		return nil
	}
	if err := db.BlockBlastRecipient(ctx, processordb.BlockBlastRecipientParams{BlastID: *m.BlastID, Position: int64(m.RecipientIndex)}); err != nil {
		return fmt.Errorf("block a blast's recipient: %w", err)
	}
	return nil
}

// job takes the person's messages out of one job. One in a provider's hands is
// left for later. A batch whose bytes may have been taken keeps them until that
// is known: its other recipients must get theirs once, under the same key
// (interleaving I15).
func (e *erasure) job(ctx context.Context, db *processordb.Queries, seek *seeking, r processordb.PageJobsRow) (rows int, later bool, err error) {
	var payload struct {
		Channel  string            `json:"channel"`
		Messages []json.RawMessage `json:"messages"`
	}
	if err := json.Unmarshal([]byte(r.Payload), &payload); err != nil {
		return 0, false, fmt.Errorf("read a job: %w", err)
	}
	mine, others, kept, err := e.split(seek, payload.Channel, payload.Messages)
	if err != nil || len(mine) == 0 {
		return 0, false, err
	}
	if r.Alive {
		return 0, true, nil
	}
	uncertain := false
	if open(r.State) && r.Generation > 0 {
		if uncertain, err = db.JobUncertain(ctx, processordb.JobUncertainParams{JobID: r.JobID, Generation: r.Generation}); err != nil {
			return 0, false, fmt.Errorf("ask whether a request is uncertain: %w", err)
		}
	}
	if uncertain && len(others) > 0 {
		return 0, true, nil
	}
	state := r.State
	if open(r.State) {
		if len(others) == 0 {
			state = "blocked"
		} else if r.Generation == 0 { // nothing of it was ever frozen: they leave the batch
			kept = others
		}
		if err := e.end(ctx, db, payload.Channel, r.Generation, mine); err != nil {
			return 0, false, err
		}
	}
	messages, err := json.Marshal(kept)
	if err != nil {
		return 0, false, fmt.Errorf("empty a job: %w", err)
	}
	err = db.WriteJob(ctx, processordb.WriteJobParams{Messages: messages, State: state, IDTime: r.IDTime, Worker: r.Worker, JobID: r.JobID})
	if err != nil {
		return 0, false, fmt.Errorf("empty a job: %w", err)
	}
	if _, err := db.EmptyRequests(ctx, r.JobID); err != nil {
		return 0, false, fmt.Errorf("empty frozen requests: %w", err)
	}
	return 1, false, nil
}

// open says that a job may still be sent.
func open(state string) bool {
	switch state {
	case "waiting", "in_topic", "claimed", "parked", "held":
		return true
	}
	return false
}

// end says of the person's messages in an open job that they will not be sent.
func (e *erasure) end(ctx context.Context, db *processordb.Queries, channel string, generation int32, mine []schemas.JobMessage) error {
	for _, m := range mine {
		if generation == 0 {
			if err := block(ctx, db, channel, m); err != nil {
				return err
			}
			continue
		}
		if err := db.FailSend(ctx, processordb.FailSendParams{Generation: generation, RequestedAt: m.RequestedAt, SendID: m.SendID}); err != nil {
			return fmt.Errorf("end a send: %w", err)
		}
	}
	return nil
}

// split parts a job's messages into the person's and the others; kept are all of
// them in their order, the person's without what they say and to whom.
func (e *erasure) split(seek *seeking, channel string, all []json.RawMessage) (mine []schemas.JobMessage, others, kept []json.RawMessage, err error) {
	for _, raw := range all {
		var m schemas.JobMessage
		if err := json.Unmarshal(raw, &m); err != nil {
			return nil, nil, nil, fmt.Errorf("read a job's message: %w", err)
		}
		if !seek.contacts[strings.ToLower(m.ContactID.String())] && !(m.ContactID == uuid.Nil && seek.is(identifier.OfChannel(channel), m.Address)) {
			others, kept = append(others, raw), append(kept, raw)
			continue
		}
		mine = append(mine, m)
		m.Address, m.Variables, m.Content = "", nil, nil
		empty, err := json.Marshal(m)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("empty a job's message: %w", err)
		}
		kept = append(kept, empty)
	}
	return mine, others, kept, nil
}

// blasts hides the person among the recipients of blasts.
func (j *Job) blasts(ctx context.Context, tx pgx.Tx, e *erasure, _ json.RawMessage) (page, error) {
	n, err := processordb.New(tx).HideBlastContacts(ctx, processordb.HideBlastContactsParams{TenantID: e.tenant, Contacts: e.contacts})
	if err != nil {
		return page{}, fmt.Errorf("hide recipients of blasts: %w", err)
	}
	return page{rows: int(n)}, nil
}
