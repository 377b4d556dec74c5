package webhook

import (
	"slices"
	"strings"
)

// TypeTracked is the type of what core.event.tracked brings (FS-CORE-0006).
const TypeTracked = "core.event.tracked"

// typePrefixMessage begins the types of what messaging.message brings
// (FS-MSG-0003).
const typePrefixMessage = "messaging.message."

// EventTypes lists every type that can be subscribed to.
func EventTypes() []string {
	types := []string{TypeTracked}
	for _, step := range []string{"sent", "delivered", "opened", "clicked", "bounced", "complained", "failed"} {
		types = append(types, typePrefixMessage+step)
	}
	return types
}

// matches says whether a subscription covers a type: "*", a prefix that ends
// with ".*", or the type itself.
func matches(subscription []string, eventType string) bool {
	return slices.ContainsFunc(subscription, func(pattern string) bool {
		if pattern == "*" || pattern == eventType {
			return true
		}
		prefix, ok := strings.CutSuffix(pattern, "*")
		return ok && strings.HasSuffix(prefix, ".") && strings.HasPrefix(eventType, prefix)
	})
}

// subscription checks and orders the types that an endpoint asks for.
func subscription(asked []string) ([]string, error) {
	if len(asked) == 0 {
		return nil, refuse("event_types_required", "/event_types", "name at least one event type, or *")
	}
	for _, pattern := range asked {
		known := slices.ContainsFunc(EventTypes(), func(t string) bool { return matches([]string{pattern}, t) })
		if !known {
			return nil, refuse("unknown_event_type", "/event_types", "one of the types matches no event: "+strings.Join(EventTypes(), ", ")+", or a prefix with .*")
		}
	}
	out := slices.Clone(asked)
	slices.Sort(out)
	return slices.Compact(out), nil
}
