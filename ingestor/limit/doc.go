// Package limit owns how much a tenant may send: its plan's rate and burst, and
// those of a key that has its own, counted in events and recipients
// (FS-CORE-0006 §1, §10). It is the ingestor's Limiter. The buckets are the
// script of internal/ratelimit in Redis, so that all replicas share them; this
// package leases tokens from them in blocks, decides alone while Redis is away,
// and writes the RateLimit headers. What a plan allows is package apikey's.
//
// A request is charged whole or not at all, from both buckets or from neither.
// One that costs more than a bucket can ever hold passes once the bucket is half
// full and leaves it in debt: a batch of 500 is promised to everybody, and
// waiting for a full bucket would be waiting for ever beside small requests.
package limit
