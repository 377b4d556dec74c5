// Package pg owns how the platform reaches PostgreSQL: pools, transactions,
// LISTEN, and the classes of its errors that decide between waiting, bisecting
// and stopping.
package pg

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"
)

// Fault is what an error of the database means to whoever wrote.
type Fault int

const (
	// FaultNone is an error that does not come from the database or the way to it.
	FaultNone Fault = iota
	// FaultWait is trouble of the database itself: try the same again, later.
	FaultWait
	// FaultRace is two writers that met: try again once, on fresh reads.
	FaultRace
	// FaultPartition is a missing partition: make it and try again.
	FaultPartition
	// FaultData is a refusal of the data: a single row is at fault.
	FaultData
	// FaultStatement is a statement that the schema does not know: stop and page.
	FaultStatement
)

// FaultOf classifies err.
func FaultOf(err error) Fault {
	// Whatever a connection was refused for says nothing of the data: a password
	// that is being changed gives an error with a code, too.
	var ce *pgconn.ConnectError
	if errors.As(err, &ce) {
		return FaultWait
	}
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return faultOfCode(pe)
	}
	var ne net.Error
	if errors.As(err, &ne) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, context.DeadlineExceeded) || pgconn.SafeToRetry(err) ||
		isClosed(err) {
		return FaultWait
	}
	return FaultNone
}

func faultOfCode(pe *pgconn.PgError) Fault {
	switch pe.Code {
	case "23505", "21000":
		return FaultRace
	case "23514":
		if pe.ConstraintName == "" { // "no partition of relation … found for row"
			return FaultPartition
		}
		return FaultData
	case "25006": // the primary became a standby
		return FaultWait
	}
	switch pe.Code[:2] {
	case "08", "25", "28", "3D", "40", "53", "55", "57", "58", "72", "F0", "XX":
		return FaultWait
	case "0A", "42", "3F", "26": // 0A000: a cached plan, right after a migration
		return FaultStatement
	}
	return FaultData
}

// isClosed knows pgx's own words for a connection that is gone.
func isClosed(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		switch err.Error() {
		case "conn closed", "closed pool", "conn busy":
			return true
		}
	}
	return false
}
