// Package e2e tests the whole product as its users meet it: the binary, its
// processes and its HTTP API, with a ledger kept by the test alone. Nothing of
// the product imports it.
package e2e
