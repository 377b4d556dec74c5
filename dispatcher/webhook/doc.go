// Package webhook tells tenants what happened, by signed POST requests to the
// endpoints that they name (FS-CORE-0006 and FS-MSG-0003, "Eventos"). It owns
// the endpoints, the stage that turns records of core.event.tracked and
// messaging.message into deliveries, and the attempts until each is delivered or
// given up. The wiring gives Dispatcher.Handler to a stream loop and runs
// Dispatcher.Run beside it; the API calls Store.
//
// A delivery is a row of core.webhook_deliveries, written in the transaction
// that advances the stage. What an endpoint's lane has room for is leased to
// this process in the same statement and attempted from memory as soon as the
// transaction has committed; the rest, and whatever failed, is claimed from the
// table by any process (docs/decisions/webhook-first-attempt.md). Deliveries
// arrive at least once, under one id and with identical bytes; those of one
// contact, or of one send, in order.
//
// What may be connected to is decided in guard, how secrets are kept in seal,
// what a signature is in internal/signature.
package webhook
