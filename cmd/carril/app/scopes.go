package app

import (
	"fmt"
	"slices"
	"strings"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/ingestor/manage"
)

// Scopes are what a key may be allowed to do.
func Scopes() []string {
	scopes := []string{apikey.ScopeEventsWrite, apikey.ScopeMessagesWrite, apikey.ScopeEventsRead,
		manage.ScopeBlasts, manage.ScopeBlastsRead, manage.ScopeContactsRead, manage.ScopeContactsErase, manage.ScopeWebhooks, manage.ScopeSendsRead,
		manage.ScopeQueuesRead, manage.ScopeConsents, manage.ScopeSuppressions, manage.ScopeSenders, manage.ScopeRules, manage.ScopeTaxonomy, manage.ScopeTemplates}
	slices.Sort(scopes)
	return scopes
}

// CheckScopes refuses a scope that nothing asks for: its key would be refused
// everywhere, and nobody would see why.
func CheckScopes(scopes []string) error {
	for _, s := range scopes {
		if !slices.Contains(Scopes(), s) {
			return fmt.Errorf("%w: --scopes: there is no %q; there are %s", ErrConfig, s, strings.Join(Scopes(), ", "))
		}
	}
	return nil
}
