// Package openapi owns the HTTP contract: the OpenAPI 3.1 document, embedded.
// The ingestor serves it at /openapi.yaml, and tests hold real requests and
// answers against it.
package openapi

import _ "embed" // for YAML

// YAML is the document. Nobody changes it.
//
//go:embed openapi.yaml
var YAML []byte
