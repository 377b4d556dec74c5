// Package message owns what a request of the messages API must look like to be
// taken (FS-MSG-0005; bad inputs 48 to 51): it makes a NotificationRequested of
// raw bytes, or refuses them with a typed problem. It is pure: who the caller is
// and when the request came are arguments. Whether a message may go is decided
// behind the topic, by the gates: an address that is none, a person who wants no
// mail and a template that is missing are not found here.
//
// The JSON itself is package intake's: what no event may contain, no message
// may. The ingestor calls it, and puts the request in the queue of its rail.
//
// # Body hash
//
// Two requests are the same when channel, category, recipients, template,
// content, variables and expires_at are the same, white space between tokens and
// the spelling of the same instant aside. The correlation_id does not count.
package message
