package erasure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/internal/identifier"
	"github.com/softcrum/carril/schemas"
)

// lettersPage bounds the dead letters of a page: each may hold a megabyte.
const lettersPage = 50

// letters empties dead letters that are about the person: a record that could not
// be processed has no contact, so its bytes are searched.
func (j *Job) letters(ctx context.Context, tx pgx.Tx, e *erasure, at json.RawMessage) (page, error) {
	p, from := page{}, place{At: longAgo}
	var err error
	if len(at) > 0 {
		if from, err = readPlace(at); err != nil {
			return p, err
		}
	}
	db := processordb.New(tx)
	seek, err := e.seeking(ctx, db)
	if err != nil {
		return p, err
	}
	rows, err := db.PageDeadLetters(ctx, processordb.PageDeadLettersParams{Of: e.tenant, At: from.At, Behind: from.ID, MaxRows: lettersPage})
	if err != nil {
		return p, fmt.Errorf("read dead letters: %w", err)
	}
	var hits []uuid.UUID
	for _, r := range rows {
		if seek.letter(r) {
			hits = append(hits, r.DeadLetterID)
		}
	}
	n, err := db.EmptyDeadLetters(ctx, processordb.EmptyDeadLettersParams{Letters: hits})
	if err != nil {
		return p, fmt.Errorf("empty dead letters: %w", err)
	}
	p.rows = int(n)
	if len(rows) == lettersPage {
		last := rows[len(rows)-1]
		p.next = place{At: last.CreatedAt, ID: last.DeadLetterID}
	}
	return p, nil
}

// seeking knows a person by contact ids and by the hashes of what the person was
// called: the identifiers themselves are gone.
type seeking struct {
	tenant   string
	contacts map[string]bool // lower case
	key      []byte          // nil: hashes of nobody
	hashes   map[string]bool
}

// seeking reads what the person is known by, once.
func (e *erasure) seeking(ctx context.Context, db *processordb.Queries) (*seeking, error) {
	if e.seek != nil {
		return e.seek, nil
	}
	s := &seeking{tenant: e.tenant.String(), contacts: map[string]bool{}, hashes: map[string]bool{}}
	for _, c := range e.contacts {
		s.contacts[c.String()] = true
	}
	key, err := db.ErasureKey(ctx, e.tenant)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("read the tenant's erasure key: %w", err)
	}
	s.key = key
	hashes, err := db.HashesOf(ctx, e.id)
	if err != nil {
		return nil, fmt.Errorf("read the tombstones: %w", err)
	}
	for _, h := range hashes {
		s.hashes[string(h)] = true
	}
	e.seek = s
	return s, nil
}

// is says whether a value was the person's.
func (s *seeking) is(kind, value string) bool {
	if s.key == nil || len(s.hashes) == 0 || value == "" {
		return false
	}
	v, err := identifier.Normalize(kind, value)
	return err == nil && s.hashes[string(identifier.Hash(s.key, kind, v))]
}

// letter says whether a dead letter is about the person. One of no tenant must
// name ours, but for a provider's report, which may not.
func (s *seeking) letter(r processordb.PageDeadLettersRow) bool {
	text := strings.ToValidUTF8(string(r.RecordKey)+"\n"+string(r.RecordValue)+"\n"+r.Headers, "\n")
	if r.TenantID == nil && r.Topic != schemas.TopicProviderEvents && !strings.Contains(strings.ToLower(text), s.tenant) {
		return false
	}
	return s.in(text)
}

// What may name a person in a record. Avro keeps text as it is, so that neither
// the registry nor a whole record is needed.
var (
	uuids  = regexp.MustCompile(`[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`)
	pairs  = regexp.MustCompile(`("(?:[^"\\]|\\.)*")\s*:\s*("(?:[^"\\]|\\.)*")`)
	emails = regexp.MustCompile(`[^\s"'<>(),;:\\\x00-\x1f]{1,64}@[^\s"'<>(),;:\\\x00-\x1f]{3,255}`)
	phones = regexp.MustCompile(`\+[0-9][0-9 ().-]{5,24}[0-9]`)
)

func (s *seeking) in(text string) bool {
	for _, id := range uuids.FindAllString(text, -1) {
		if s.contacts[strings.ToLower(id)] {
			return true
		}
	}
	if s.key == nil || len(s.hashes) == 0 {
		return false
	}
	for _, m := range pairs.FindAllStringSubmatch(text, -1) {
		var kind, value string
		if json.Unmarshal([]byte(m[1]), &kind) != nil || json.Unmarshal([]byte(m[2]), &value) != nil {
			continue
		}
		if s.is(kind, value) || s.is(identifier.Email, value) || s.is(identifier.Phone, value) {
			return true
		}
	}
	for _, v := range emails.FindAllString(text, -1) {
		if s.is(identifier.Email, strings.Trim(v, ".[]{}")) {
			return true
		}
	}
	for _, v := range phones.FindAllString(text, -1) {
		if s.is(identifier.Phone, v) {
			return true
		}
	}
	return false
}

// exports has the files rewritten that retention wrote. It is asked outside of
// any transaction: a file may take minutes.
func (j *Job) exports(ctx context.Context, e *erasure) (later bool, err error) {
	db := processordb.New(j.deps.Pool)
	_, through, err := j.position(ctx, db, e, StoreExports)
	if err != nil || through {
		return false, err
	}
	left := 0
	if j.deps.Exports != nil {
		if left, err = j.deps.Exports.Erase(ctx, e.tenant, e.contacts); err != nil {
			return false, err
		}
	}
	return left > 0, j.step(ctx, db, e, StoreExports, page{}, left == 0)
}

// timed closes the stores that end by time. It gives when to look again; nil:
// nothing is left.
func (j *Job) timed(ctx context.Context, e *erasure) (again *time.Time, err error) {
	db := processordb.New(j.deps.Pool)
	stores, err := db.ErasureStores(ctx, e.id)
	if err != nil {
		return nil, fmt.Errorf("read how far the erasure is: %w", err)
	}
	for _, s := range stores {
		if s.DoneAt != nil {
			continue
		}
		var at time.Time
		var err error
		switch s.Store {
		case StoreOutbox:
			at, err = j.outbox(ctx, e)
		case StoreKafka:
			if at = e.at.Add(j.cfg.Kept); e.passes == len(j.cfg.passes(e.cause)) {
				at, err = time.Time{}, j.step(ctx, db, e, StoreKafka, page{}, true)
			}
		case StoreTopic:
			at, err = j.bury(ctx, e)
		default:
			continue // a sweep's
		}
		if err != nil {
			return nil, &storeError{s.Store, err}
		}
		if !at.IsZero() && (again == nil || at.Before(*again)) {
			again = &at
		}
	}
	return again, nil
}

// outbox waits until the days of derived messages that may be the person's are
// gone.
func (j *Job) outbox(ctx context.Context, e *erasure) (again time.Time, err error) {
	db := processordb.New(j.deps.Pool)
	if now := j.deps.Now(); now.Before(e.at.Add(j.cfg.Settle)) {
		return e.at.Add(j.cfg.Settle), nil
	}
	holds, err := db.OutboxHolds(ctx, e.at.Add(j.cfg.Settle))
	if err != nil {
		return again, fmt.Errorf("look at the outbox: %w", err)
	}
	if holds {
		return j.deps.Now().Add(time.Hour), nil
	}
	return again, j.step(ctx, db, e, StoreOutbox, page{}, true)
}

// bury ends the person's keys in the compacted topic, once mirrors have had time
// to hear of the erasure.
func (j *Job) bury(ctx context.Context, e *erasure) (again time.Time, err error) {
	if at := e.at.Add(j.cfg.Bury); j.deps.Now().Before(at) {
		return at, nil
	}
	return again, pgx.BeginFunc(ctx, j.deps.Pool, func(tx pgx.Tx) error {
		db := processordb.New(tx)
		if _, err := db.HoldErasure(ctx, e.id); err != nil {
			return fmt.Errorf("hold the erasure: %w", err)
		}
		if err := j.step(ctx, db, e, StoreTopic, page{}, true); err != nil {
			return err
		}
		return j.deps.Lanes.Bury(ctx, tx, e.tenant, e.contacts)
	})
}
