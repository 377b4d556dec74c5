package app

import (
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/schemas/openapi"
)

func TestScopesAreThoseOfTheContract(t *testing.T) {
	t.Parallel()
	var named []string
	for _, m := range regexp.MustCompile("Needs `([a-z._]+)`").FindAllStringSubmatch(string(openapi.YAML), -1) {
		named = append(named, m[1])
	}
	slices.Sort(named)
	require.Equal(t, slices.Compact(named), Scopes())
	require.NoError(t, CheckScopes(demoScopes))
}
