//go:build !faults

package app

import "github.com/softcrum/carril/internal/stream"

// failpoint is nothing in the product: see the build for tests of faults.
func failpoint(string) stream.Hook { return nil }
