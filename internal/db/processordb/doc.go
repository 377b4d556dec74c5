// Package processordb is the SQL of the processor's stages: the event log,
// identity, rules, channels, and what they ask of tenants and partitions. The
// queries and the reasons for their shape stand in queries/*.sql; sqlc writes the
// rest of the package from them. It decides nothing: sorting what is locked, and
// what a missing row means, is its callers' to do.
package processordb
