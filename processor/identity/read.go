package identity

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/softcrum/carril/internal/identifier"
	"github.com/softcrum/carril/internal/jsonscan"
)

type pair struct{ kind, value string }

// Identifiers are an event's, normalised.
type Identifiers struct {
	ids     []pair            // strongest kind first
	refused map[string]string // kind and why
}

// Read reads and normalises an event's identifiers, a JSON object of strings,
// and keeps why it refused any. It asks nobody, so it can be done ahead.
func Read(raw string) *Identifiers {
	pairs, ok := plainPairs(raw)
	if !ok {
		var in map[string]string
		if err := json.Unmarshal([]byte(raw), &in); err != nil {
			return &Identifiers{refused: map[string]string{"identifiers": "not an object of strings"}}
		}
		for kind, value := range in {
			pairs = append(pairs, pair{kind, value})
		}
	}
	out := &Identifiers{ids: pairs[:0]}
	for _, id := range pairs {
		v, err := identifier.Normalize(id.kind, id.value)
		if err != nil {
			if out.refused == nil {
				out.refused = map[string]string{}
			}
			out.refused[id.kind] = err.Error()
			continue
		}
		out.ids = append(out.ids, pair{id.kind, v})
	}
	slices.SortFunc(out.ids, func(a, b pair) int {
		return cmp.Or(strength(a.kind)-strength(b.kind), strings.Compare(a.kind, b.kind))
	})
	return out
}

// plainPairs reads an object of strings as nearly all are: printable ASCII, no
// escapes, no key twice. ok is false for any other, which encoding/json reads.
func plainPairs(raw string) (pairs []pair, ok bool) {
	s, ok := strings.CutPrefix(raw, "{")
	if !ok {
		return nil, false
	}
	if s == "}" {
		return nil, true
	}
	pairs = make([]pair, 0, 4)
	for {
		var id pair
		if id.kind, s, ok = jsonscan.Plain(s); !ok || !strings.HasPrefix(s, ":") {
			return nil, false
		}
		if id.value, s, ok = jsonscan.Plain(s[1:]); !ok || s == "" {
			return nil, false
		}
		for _, p := range pairs {
			if p.kind == id.kind {
				return nil, false
			}
		}
		pairs = append(pairs, id)
		switch {
		case s == "}":
			return pairs, true
		case s[0] != ',':
			return nil, false
		}
		s = s[1:]
	}
}

// strength orders kinds by how surely they name one person.
func strength(kind string) int {
	switch kind {
	case KindExternalID:
		return 0
	case KindEmail:
		return 1
	case KindPhone:
		return 2
	case KindAnonymous:
		return 4
	}
	return 3
}
