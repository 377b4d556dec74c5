package stream

import "sync"

// Memory bounds the bytes of records that all partitions of a process hold
// together, in their queues and in hand, over all its loops: what bounds one
// partition alone is too much for fifty. While the process holds more than the
// bound, a partition that holds more than an equal share of it is paused; it
// goes on once it holds less than half of one. So no partition waits for
// another's to be applied, and a single busy one has the whole bound.
type Memory struct {
	limit int

	mu      sync.Mutex
	used    int
	members int
}

// NewMemory makes a bound in bytes; 0: 64 MiB.
func NewMemory(limit int) *Memory {
	if limit <= 0 {
		limit = 64 << 20
	}
	return &Memory{limit: limit}
}

// The most and the fewest records that one poll hands to the workers.
const mostPolled, fewestPolled = 2_000, 20

// poll is how many records of a mean size one poll may bring: an eighth of the
// bound, for nobody can say that it is full before it has them. What a broker's
// answer was compressed from has no bound in bytes.
func (m *Memory) poll(size int) int {
	if m == nil {
		return mostPolled
	}
	if size == 0 {
		size = 8 << 10 // before the first
	}
	return max(fewestPolled, min(mostPolled, m.limit/8/size))
}

// Used is how much is held, in bytes.
func (m *Memory) Used() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

// join makes a partition's part; nil memory bounds nothing.
func (m *Memory) join() held {
	if m == nil {
		return held{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.members++
	return held{m: m, of: &share{}}
}

// held is what one partition has of a Memory.
type held struct {
	m  *Memory
	of *share
}

type share struct {
	bytes int
	left  bool
}

func (h held) take(n int) {
	if h.m == nil {
		return
	}
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if h.of.left {
		return
	}
	h.m.used += n
	h.of.bytes += n
}

func (h held) give(n int) { h.take(-n) }

// leave gives back whatever is held, for good.
func (h held) leave() {
	if h.m == nil {
		return
	}
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if h.of.left {
		return
	}
	h.of.left = true
	h.m.used -= h.of.bytes
	h.m.members--
}

// tooMuch says that the process holds too much, and this partition more than its
// share of it.
func (h held) tooMuch() bool { return h.over(1) }

// stillMuch says that a paused partition must not fetch yet.
func (h held) stillMuch() bool { return h.over(2) }

func (h held) over(part int) bool {
	if h.m == nil {
		return false
	}
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	return h.m.used > h.m.limit && h.of.bytes > h.m.limit/max(1, h.m.members)/part
}
