// Package ingestor owns the front door of the runtime API: POST
// /v1/core/track, /identify and /batch, and POST /v1/messaging/messages. A request is authenticated, validated,
// limited, put in the queue and answered with 202, and nothing else happens
// here (FS-CORE-0006 §1): the 202 says that Kafka has the event on all in-sync
// replicas, and never that anything was done about it.
//
// What an event looks like is package intake's, what a message looks like is
// package message's, who may send one is package
// apikey's, how to listen is package httpserver's. The wiring mounts an API on
// a router and hands it its queue, keys and limits.
package ingestor
