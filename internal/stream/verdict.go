package stream

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/internal/db/streamdb"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/pg"
)

type committedBatch struct{ derived []outbox.Item }

// what is done about an error of a batch
type decision int

const (
	wait decision = iota
	again
	makePartitions
	bisect
	giveUp
)

// verdict decides by the error's kind. A race is tried again once, on fresh
// reads; the second time the data is at fault.
func verdict(err error, raced *bool) decision {
	if errors.Is(err, errFenced) || errors.Is(err, outbox.ErrFenced) {
		return giveUp
	}
	if errors.Is(err, ErrWait) {
		return wait
	}
	switch pg.FaultOf(err) {
	case pg.FaultWait, pg.FaultStatement: // a statement that the schema does not know waits for its migration, loudly
		return wait
	case pg.FaultPartition:
		return makePartitions
	case pg.FaultRace:
		if !*raced {
			*raced = true
			return again
		}
		return bisect
	}
	if errors.Is(err, context.Canceled) {
		return wait
	}
	return bisect
}

// classOf names why a single record was refused.
func classOf(err error) string {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return "refused_by_database"
	}
	if errors.Is(err, ErrPoison) {
		return "poison"
	}
	return "refused_by_stage"
}

// redact keeps the kind of a database error and leaves out its detail, which
// quotes the row.
func redact(err error) string {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		s := fmt.Sprintf("SQLSTATE %s", pe.Code)
		if pe.TableName != "" {
			s += " on " + pe.SchemaName + "." + pe.TableName
		}
		if pe.ConstraintName != "" {
			s += " (" + pe.ConstraintName + ")"
		}
		return s
	}
	return printable(err.Error())
}

// printable makes text that PostgreSQL takes.
func printable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// keepDeadLetters writes what could not be processed, with its bytes.
func keepDeadLetters(ctx context.Context, tx pgx.Tx, stage string, topicID [16]byte, logical func(string) string, rejects []reject) error {
	for _, r := range rejects {
		r.ref = r.ref.orOf(r.record)
		sum := sha256.Sum256(r.record.Value)
		key, value, headers := r.record.Key, r.record.Value, outbox.EncodeHeaders(r.record.Headers)
		if r.bare {
			key, value, headers = nil, nil, nil
		}
		err := streamdb.New(tx).KeepDeadLetter(ctx, streamdb.KeepDeadLetterParams{
			DeadLetterID: ids.New(), Stage: stage, Class: r.class, Reason: printable(r.reason),
			TenantID: orNull(r.ref.TenantID), EventID: orNull(r.ref.EventID), SendID: orNull(r.ref.SendID),
			Topic: logical(r.record.Topic), TopicID: topicID, TopicPartition: r.record.Partition, TopicOffset: r.record.Offset,
			RecordKey: key, RecordValue: value, RecordHeaders: headers, ContentHash: sum[:]})
		if err != nil {
			return fmt.Errorf("keep a dead letter of offset %d: %w", r.record.Offset, err)
		}
	}
	return nil
}

// orOf fills what is not known of a dead letter from its record's CloudEvents
// headers, which can be read where the record itself cannot: who sent an event
// must be able to find out that it lies here.
func (r Ref) orOf(rec *kgo.Record) Ref {
	if tenant, ok := strings.CutPrefix(kafka.Header(rec, "ce_source"), "/tenants/"); ok && r.TenantID == uuid.Nil {
		r.TenantID = idOrNil(tenant)
	}
	if t := kafka.Header(rec, "ce_type"); r.EventID == uuid.Nil && (t == "core.event.accepted" || t == "core.event.tracked") {
		r.EventID = idOrNil(kafka.Header(rec, "ce_id"))
	}
	return r
}

func idOrNil(s string) uuid.UUID {
	id, err := uuid.Parse(s)
	if err != nil {
		return uuid.Nil
	}
	return id
}

func orNull(id uuid.UUID) *uuid.UUID {
	if id == uuid.Nil {
		return nil
	}
	return &id
}

// jitter spreads a wait over [d/2, d].
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d/2+1)
}
