package main

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/ingestor/manage"
)

func TestSurvivor(t *testing.T) {
	t.Parallel()
	named, before := uuid.New(), uuid.New()
	require.Equal(t, named.String(), survivor(&manage.Contact{ContactID: named}))
	require.Equal(t, before.String()+" ("+named.String()+" was merged into it before)", survivor(&manage.Contact{ContactID: named, MergedInto: &before}),
		"an operator who undoes that merge later must know with whom the contact stays")
}
