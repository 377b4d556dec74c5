//go:build !faults

package e2e

// buildTags of the product under test.
const buildTags = ""
