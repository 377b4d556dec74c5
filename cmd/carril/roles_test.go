package main

import (
	"math"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/cmd/carril/app"
)

func TestTuneMemory(t *testing.T) { // the process's own settings: nothing beside it
	limit, percent := debug.SetMemoryLimit(-1), debug.SetGCPercent(100)
	t.Cleanup(func() {
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(percent)
	})
	for name, tc := range map[string]struct {
		roles   app.Roles
		env     map[string]string
		limit   int64
		percent int
	}{
		"ARoleAlone":       {app.Roles{Process: true}, nil, roleMemory, roleGarbage},
		"RolesTogether":    {app.Roles{Process: true, Ingest: true}, nil, 2 * roleMemory, 100},
		"WhoSaysIsHeard":   {app.Roles{Process: true}, map[string]string{"GOMEMLIMIT": "1GiB", "GOGC": "50"}, math.MaxInt64, 100},
		"TheLimitIsItsOwn": {app.Roles{Process: true}, map[string]string{"GOGC": "50"}, roleMemory, 100},
	} {
		t.Run(name, func(t *testing.T) {
			debug.SetMemoryLimit(math.MaxInt64)
			debug.SetGCPercent(100)
			tuneMemory(tc.roles, func(k string) string { return tc.env[k] })
			require.Equal(t, tc.limit, debug.SetMemoryLimit(-1))
			require.Equal(t, tc.percent, debug.SetGCPercent(100))
		})
	}
}
