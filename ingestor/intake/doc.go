// Package intake owns what an event must look like to be taken: it parses and
// validates one event, or a batch, from raw bytes into schemas.Event values, in
// one pass of its own scanner, and refuses with typed errors what would later
// poison a partition or a transaction. It is pure: no clock, no network, no
// storage; who the caller is and when the request came are arguments. The
// ingestor calls it; authentication, limits and Kafka are the ingestor's.
//
// # What is kept
//
// identifiers, properties and traits stay the caller's text, byte for byte:
// 9007199254740993, -0, 1.0 and 1E2 leave as they came. (PostgreSQL's jsonb
// then keeps the value and the digits but not the spelling: -0 is stored as 0,
// 1E2 as 100.)
//
// # Which numbers
//
// jsonb stores a number as a decimal and writes it back without an exponent, so
// that 1e131071 is seven bytes in and 131,072 out. A number is taken when it
// has at most 64 significant digits, is finite as a float64, has no digit
// beyond the 400th decimal place and an exponent within ±400; and when all
// numbers of an event, written without exponents, stay within 32 KiB.
//
// # Body hash
//
// Two events are the same event when kind, event_name, occurred_at (the instant
// to the microsecond, and the offset), historical, identifiers and properties
// (or traits) are the same, white space between tokens aside. The SHA-256 over
// these tells a retry from another event under the same key; key order and
// escapes count, the correlation_id does not (some clients draw a new one a try).
package intake
