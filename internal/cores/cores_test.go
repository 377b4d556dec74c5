package cores

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSpare(t *testing.T) { // the process's own setting: nothing beside it
	before := runtime.GOMAXPROCS(0)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	t.Setenv("GOMAXPROCS", "7")
	Spare()
	require.Equal(t, before, runtime.GOMAXPROCS(0), "who says how many is heard")
	t.Setenv("GOMAXPROCS", "")
	Spare()
	require.Equal(t, before+spare, runtime.GOMAXPROCS(0))
	require.Equal(t, before, Given(), "the cores stay what they were")
}
