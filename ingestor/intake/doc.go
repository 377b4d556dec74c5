// Package intake owns what an event must look like to be taken: it parses and
// validates one event, or a batch, from raw bytes into schemas.Event values, in
// one pass of jsonscan's scanner, and refuses with typed errors what would later
// poison a partition or a transaction. It is pure: no clock, no network, no
// storage; who the caller is and when the request came are arguments. The
// ingestor calls it; authentication, limits and Kafka are the ingestor's.
//
// # What is kept
//
// identifiers, properties and traits stay the caller's text, byte for byte:
// 9007199254740993, -0, 1.0 and 1E2 leave as they came. (PostgreSQL's jsonb
// then keeps the value and the digits but not the spelling: -0 is stored as 0,
// 1E2 as 100.) Which numbers are taken, jsonscan says.
//
// # Body hash
//
// Two events are the same event when kind, event_name, occurred_at (the instant
// to the microsecond, and the offset), historical, identifiers and properties
// (or traits) are the same, white space between tokens aside. The SHA-256 over
// these tells a retry from another event under the same key; key order and
// escapes count, the correlation_id does not (some clients draw a new one a try).
package intake
