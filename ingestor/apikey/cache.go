package apikey

import (
	"sync"
	"sync/atomic"
	"time"
)

// entry is what the store said of a key id.
type entry struct {
	record  Record
	missing bool
	loaded  atomic.Int64 // unix nanoseconds when the look-up began
	used    atomic.Int64 // unix nanoseconds of the last use; 0: none since it was written

	renewing atomic.Bool // its successor is being asked for
}

func (e *entry) age(now time.Time) time.Duration {
	return time.Duration(now.UnixNano() - e.loaded.Load())
}

// cache holds entries by key id. Unknown ids have a room of their own: whoever
// invents ids must not push known keys out.
type cache struct {
	fresh   time.Duration
	known   room
	unknown room
	// epoch counts what was heard of changes: an answer that the store gave
	// before one must not be kept after it.
	epoch atomic.Uint64
}

type room struct {
	mu      sync.RWMutex
	entries map[string]*entry
	max     int
}

func (c *cache) init(cfg Config) {
	c.fresh = cfg.Fresh
	c.known = room{entries: map[string]*entry{}, max: cfg.MaxKeys}
	c.unknown = room{entries: map[string]*entry{}, max: cfg.MaxNegative}
}

func (c *cache) get(id string) *entry {
	if e := c.known.get(id); e != nil {
		return e
	}
	return c.unknown.get(id)
}

// put keeps an entry that was asked for at an epoch, unless something has
// changed since: the next request then asks again.
func (c *cache) put(id string, e *entry, epoch uint64) {
	into, from := &c.known, &c.unknown
	if e.missing {
		into, from = from, into
	}
	from.drop(id)
	into.mu.Lock()
	defer into.mu.Unlock()
	if c.epoch.Load() != epoch {
		return
	}
	if old := into.entries[id]; old != nil {
		e.used.Store(old.used.Load())
	} else if len(into.entries) >= into.max {
		for victim := range into.entries { // any: a known key comes back at the price of one look-up
			delete(into.entries, victim)
			break
		}
	}
	into.entries[id] = e
}

// changed forgets a key.
func (c *cache) changed(id string) {
	c.epoch.Add(1)
	c.known.drop(id)
	c.unknown.drop(id)
}

// mistrust makes every key ask again on its next use, after changes may have
// gone unheard. They keep working while the store is away.
func (c *cache) mistrust(now time.Time) {
	c.epoch.Add(1)
	old := now.Add(-c.fresh).UnixNano()
	for _, r := range []*room{&c.known, &c.unknown} {
		r.mu.RLock()
		for _, e := range r.entries {
			if at := e.loaded.Load(); at > old {
				e.loaded.CompareAndSwap(at, old)
			}
		}
		r.mu.RUnlock()
	}
}

// takeUsed gives the keys used since the last call, and when.
func (c *cache) takeUsed() map[string]time.Time {
	used := map[string]time.Time{}
	c.known.mu.RLock()
	defer c.known.mu.RUnlock()
	for id, e := range c.known.entries {
		if at := e.used.Swap(0); at != 0 {
			used[id] = time.Unix(0, at).UTC()
		}
	}
	return used
}

func (r *room) get(id string) *entry {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.entries[id]
}

func (r *room) drop(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.entries, id)
}
