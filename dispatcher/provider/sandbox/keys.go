package sandbox

import (
	"container/list"
	"net/http"
	"sync"
	"time"
)

// keys remembers idempotency keys: what a key's request was, and what was
// answered.
type keys struct {
	life time.Duration
	max  int

	mu    sync.Mutex
	known map[string]*list.Element
	byAge list.List // of *keyed, the oldest in front
}

// keyed is one key's state. taken is nil while the request is being worked on.
type keyed struct {
	key     string
	payload [32]byte
	at      time.Time
	taken   *taken
}

func newKeys(life time.Duration, most int) *keys {
	return &keys{life: life, max: most, known: map[string]*list.Element{}}
}

// begin claims a key for a payload. It gives the original outcome where the same
// request was taken before, and a refusal where the key is in use.
func (k *keys) begin(key string, payload [32]byte, now time.Time) (*taken, *apiError) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.evict(func(e *keyed) bool { return now.Sub(e.at) >= k.life })
	if e, ok := k.known[key]; ok {
		old := entry(e)
		switch {
		case old.payload != payload:
			return nil, refuse(http.StatusConflict, nameOtherPayload, "This idempotency key has been used with another payload.")
		case old.taken == nil:
			return nil, refuse(http.StatusConflict, nameInFlight, "Another request with this idempotency key is in progress.")
		default:
			return old.taken, nil
		}
	}
	k.evict(func(*keyed) bool { return k.byAge.Len() >= k.max })
	k.known[key] = k.byAge.PushBack(&keyed{key: key, payload: payload, at: now})
	return nil, nil
}

// finish keeps the outcome; nil forgets the key, so that a request that was
// refused may come again changed.
func (k *keys) finish(key string, t *taken) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e, ok := k.known[key]
	switch {
	case !ok: // evicted meanwhile
	case t == nil:
		k.remove(e)
	default:
		entry(e).taken = t
	}
}

// evict drops the oldest for as long as they must go.
func (k *keys) evict(must func(*keyed) bool) {
	for e := k.byAge.Front(); e != nil && must(entry(e)); e = k.byAge.Front() {
		k.remove(e)
	}
}

func (k *keys) remove(e *list.Element) {
	delete(k.known, entry(e).key)
	k.byAge.Remove(e)
}

// entry is what every element of the list holds.
func entry(e *list.Element) *keyed {
	v, _ := e.Value.(*keyed)
	return v
}
