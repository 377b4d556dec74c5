// Package streamdb is the SQL of the streams' machinery: positions and dead
// letters (internal/stream), lanes and the outbox (internal/outbox), leases
// (internal/lease). The queries and the reasons for their shape stand in
// queries/*.sql; sqlc writes the rest of the package from them. It decides
// nothing: what a missing row means is its callers' to say.
package streamdb
