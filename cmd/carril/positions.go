package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/internal/stream"
)

type positionsCmd struct {
	Show       positionsShowCmd      `cmd:"" help:"Show every position."`
	AcceptLoss positionsAcceptCmd    `cmd:"" name:"accept-loss" help:"Let a stopped partition go on at its log's start: the missed records are lost."`
	Translate  positionsTranslateCmd `cmd:"" help:"Say where a partition goes on in a log that took another's place, after a move to another cluster."`
	Restored   positionsRestoredCmd  `cmd:"" help:"Say that the database was restored to an earlier time and Kafka was not."`
}

type positionsShowCmd struct{}

func (positionsShowCmd) Run(e *environment) error {
	ctx, stop := signals()
	defer stop()
	pool, err := e.database(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	rows, err := pool.Query(ctx, `SELECT stage, topic, partition, next_offset, epoch, owner, coalesce(stopped, ''), missed FROM core.stream_positions ORDER BY 1, 2, 3`)
	if err != nil {
		return fmt.Errorf("read positions: %w", err)
	}
	w := tabwriter.NewWriter(e.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "STAGE\tTOPIC\tPARTITION\tNEXT\tEPOCH\tOWNER\tSTOPPED\tMISSED")
	var stage, topic, own, stopped string
	var partition int32
	var next, epoch, missed int64
	_, err = pgx.ForEachRow(rows, []any{&stage, &topic, &partition, &next, &epoch, &own, &stopped, &missed}, func() error {
		_, err := fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%s\t%s\t%d\n", stage, topic, partition, next, epoch, own, stopped, missed)
		return err
	})
	return errors.Join(err, w.Flush())
}

type positionsAcceptCmd struct {
	Stage     string `arg:"" help:"Stage of the stopped partition."`
	Topic     string `arg:"" help:"Topic, without the deployment's prefix."`
	Partition int32  `arg:"" help:"Partition."`
	Confirm   bool   `name:"confirm-loss" required:"" help:"Say that the missed records may be lost."`
}

func (c positionsAcceptCmd) Run(e *environment) error {
	ctx, stop := signals()
	defer stop()
	pool, err := e.database(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	tag, err := pool.Exec(ctx, `UPDATE core.stream_positions SET stopped = NULL, next_offset = next_offset + missed, updated_at = now()
WHERE stage = $1 AND topic = $2 AND partition = $3 AND stopped IS NOT NULL`, c.Stage, c.Topic, c.Partition)
	if err != nil {
		return fmt.Errorf("accept the loss: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("partition %d of %s is not stopped in stage %s", c.Partition, c.Topic, c.Stage)
	}
	fmt.Fprintln(e.err, "the partition goes on at its log's start within seconds")
	return nil
}

type positionsTranslateCmd struct {
	Stage     string `arg:"" help:"Stage."`
	Topic     string `arg:"" help:"Topic, without the deployment's prefix."`
	Partition int32  `arg:"" help:"Partition."`
	Offset    int64  `default:"-1" help:"The first offset to apply in the new log." placeholder:"OFFSET"`
	At        string `help:"Or: the first record since then, by the log's time; a time or an age. Choose it earlier rather than later: what comes twice is applied once." placeholder:"TIME"`
}

// Help says when this is needed at all.
func (positionsTranslateCmd) Help() string {
	return "Without it a log with another topic id is applied from its beginning, with an alarm; that is correct, for repeats change nothing, and slow where the log is long. Stop the stage first: a running owner keeps its own place."
}

func (c positionsTranslateCmd) Run(e *environment) error {
	ctx, stop := signals()
	defer stop()
	at, err := instant("at", c.At)
	if err != nil {
		return err
	}
	if c.Offset < 0 == at.IsZero() {
		return fmt.Errorf("%w: give one of --offset and --at", app.ErrConfig)
	}
	pool, err := e.database(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	kc, err := e.set.KafkaConfig()
	if err != nil {
		return err
	}
	cl, err := kc.NewProducer()
	if err != nil {
		return fmt.Errorf("%w: %w", app.ErrConfig, err)
	}
	defer cl.Close()
	place, err := placeIn(ctx, kadm.NewClient(cl), kc.Topic(c.Topic), c.Partition, c.Offset, at)
	if err != nil {
		return err
	}
	if err := stream.Translate(ctx, pool, stream.Place{Stage: c.Stage, Topic: c.Topic, Partition: c.Partition}, place.id, place.offset); err != nil {
		return err
	}
	fmt.Fprintf(e.out, "%d\n", place.offset)
	return nil
}

type place struct {
	id     [16]byte
	offset int64
}

// placeIn finds an offset of a partition, given or by time, and checks that the
// log holds it.
func placeIn(ctx context.Context, adm *kadm.Client, topic string, partition int32, offset int64, at time.Time) (p place, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	details, err := adm.ListTopics(ctx, topic)
	if err != nil {
		return p, fmt.Errorf("describe topic %s: %w", topic, err)
	}
	if d := details[topic]; d.Err != nil || len(d.Partitions) <= int(partition) {
		return p, fmt.Errorf("%w: the cluster has no partition %d of %s", app.ErrConfig, partition, topic)
	}
	p.id, p.offset = details[topic].ID, offset
	if !at.IsZero() {
		found, err := adm.ListOffsetsAfterMilli(ctx, at.UnixMilli(), topic)
		if err != nil {
			return p, fmt.Errorf("find the offset of a time in %s: %w", topic, err)
		}
		o, _ := found.Lookup(topic, partition)
		if o.Err != nil {
			return p, fmt.Errorf("find the offset of a time in %s: %w", topic, o.Err)
		}
		p.offset = o.Offset
	}
	starts, err := adm.ListStartOffsets(ctx, topic)
	if err != nil {
		return p, fmt.Errorf("list log starts: %w", err)
	}
	ends, err := adm.ListEndOffsets(ctx, topic)
	if err != nil {
		return p, fmt.Errorf("list log ends: %w", err)
	}
	start, _ := starts.Lookup(topic, partition)
	end, _ := ends.Lookup(topic, partition)
	if p.offset < start.Offset || p.offset > end.Offset {
		return p, fmt.Errorf("%w: partition %d of %s holds %d to %d", app.ErrConfig, partition, topic, start.Offset, end.Offset)
	}
	return p, nil
}

type positionsRestoredCmd struct {
	Confirm bool `name:"confirm-restore" required:"" help:"Say that the database was restored."`
	By      line `help:"Who says so, for the record; this user at this host when empty."`
}

// Help says what it does and when.
func (positionsRestoredCmd) Help() string {
	return `Run it once after every restore to an earlier time, before the roles start again; on running roles it costs them a second.

Every owner of before, should one still live, is fenced. What Kafka holds beyond the restored positions is applied again, once. Outbox lanes give their sequences out anew from where the restored database stands, so each gets a new incarnation, and cursors of an older one (feeds, mirrors) are told where to go on. Messages that went out in the lost time are asked for again under their same keys, which the providers know for 24 hours.`
}

func (c positionsRestoredCmd) Run(e *environment) error {
	ctx, stop := signals()
	defer stop()
	pool, err := e.database(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	by := string(c.By)
	if by == "" {
		by = operator()
	}
	done, err := stream.Restored(ctx, pool, by)
	if err != nil {
		return err
	}
	fmt.Fprintf(e.err, "%d positions and %d lanes go on from here\n", done.Positions, done.Lanes)
	fmt.Fprintln(e.out, done.ID)
	return nil
}
