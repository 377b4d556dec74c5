// Package httpserver owns how Carril listens and how it refuses: a server with
// sane deadlines that drains when stopped, request ids and traceparent, and
// errors as RFC 9457 problem+json wherever they come from, the ones that
// net/http writes by itself and panics included. Routes, authentication and
// metrics belong to whoever builds the handler: the ingestor for the API, the
// ops listener for probes.
package httpserver
