package pg

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

// Listener hears notifications of one channel over a connection of its own.
type Listener struct {
	URL     string // straight to PostgreSQL, not through a transaction pooler
	Channel string // an identifier of our own, never anybody's input
	// Ping is how often a quiet connection is asked whether it is alive, and how
	// long it may take to answer: one can end without a word. Default 10 s.
	Ping time.Duration
}

// Listen blocks until ctx ends or the connection is lost. It calls listening
// once everything from then on is heard, and heard with each payload.
func (l Listener) Listen(ctx context.Context, listening func(), heard func(payload string)) error {
	if l.Ping == 0 {
		l.Ping = 10 * time.Second
	}
	conn, err := l.connect(ctx)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", l.Channel, err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	listening()
	for {
		if err := l.next(ctx, conn, heard); err != nil {
			return fmt.Errorf("listen on %s: %w", l.Channel, err)
		}
	}
}

func (l Listener) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, l.Ping)
	defer cancel()
	conn, err := pgx.Connect(ctx, l.URL)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{l.Channel}.Sanitize()); err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

func (l Listener) next(ctx context.Context, conn *pgx.Conn, heard func(string)) error {
	wait, cancel := context.WithTimeout(ctx, l.Ping)
	defer cancel()
	n, err := conn.WaitForNotification(wait)
	if err == nil {
		heard(n.Payload)
		return nil
	}
	if ctx.Err() != nil || wait.Err() == nil {
		return err
	}
	ping, cancel := context.WithTimeout(ctx, l.Ping)
	defer cancel()
	return conn.Ping(ping)
}

// The waits between two connections that listen; each is drawn around a value
// that doubles from the first to the second.
const shortestWait, longestWait = 100 * time.Millisecond, 5 * time.Second

// KeepListening listens over one connection after the other until ctx ends.
// What changes between two of them goes unheard, so listening must not trust
// what was known before. lost is told why a connection ended.
func KeepListening(ctx context.Context, listen func(ctx context.Context, listening func(), heard func(payload string)) error,
	listening func(), heard func(payload string), lost func(error)) {
	for wait := shortestWait; ; wait = min(2*wait, longestWait) {
		err := listen(ctx, func() {
			wait = shortestWait
			listening()
		}, heard)
		if ctx.Err() != nil {
			return
		}
		lost(err)
		select {
		case <-time.After(wait/2 + rand.N(wait)):
		case <-ctx.Done():
			return
		}
	}
}
