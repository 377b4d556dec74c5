package rail

// window is one assignment of one partition: the records received and not yet
// finished, in the order of their offsets. What may be committed is the low
// watermark over received offsets: committing record 9 while 1 to 8 are
// unfinished would lose eight messages, and waiting for an offset that the log
// does not hold would wait for ever.
//
// It is guarded by its worker's mutex. A completion holds the window it came
// from; one that is closed ignores it, so that nothing of an earlier
// assignment counts in a later one.
type window struct {
	topic     string // logical
	partition int32
	epoch     int64 // of the position
	topicID   [16]byte

	entries []*entry // from the first unfinished one on
	bytes   int
	next    int64 // offset after the last received record
	paused  bool
	closed  bool
	open    int // entries that are not done
	flying  int // entries in a sender's hands
	idle    chan struct{}

	committed int64 // as last committed; -1 before the first
}

// entry is a record in its window.
type entry struct {
	w      *window
	offset int64
	bytes  int
	done   bool
	flying bool
}

func newWindow(topic string, partition int32, start int64) *window {
	return &window{topic: topic, partition: partition, next: start, committed: -1, idle: make(chan struct{}, 1)}
}

// receive takes a record in. Offsets must rise.
func (w *window) receive(offset int64, bytes int) *entry {
	e := &entry{w: w, offset: offset, bytes: bytes}
	w.entries = append(w.entries, e)
	w.bytes += bytes
	w.open++
	w.next = offset + 1
	return e
}

// complete finishes a record; it reports whether the watermark moved.
func (w *window) complete(e *entry) bool {
	if e.done || w.closed {
		return false
	}
	e.done = true
	w.open--
	w.bytes -= e.bytes
	w.land(e)
	if w.entries[0] != e {
		return false
	}
	n := 0
	for n < len(w.entries) && w.entries[n].done {
		w.entries[n] = nil
		n++
	}
	w.entries = w.entries[n:]
	return true
}

// fly marks a record as being in a sender's hands, land that it is not any more.
func (w *window) fly(e *entry) {
	if !e.flying {
		e.flying = true
		w.flying++
	}
}

func (w *window) land(e *entry) {
	if !e.flying {
		return
	}
	e.flying = false
	if w.flying--; w.flying == 0 {
		select {
		case w.idle <- struct{}{}:
		default:
		}
	}
}

// watermark is the offset to commit: every received record before it is finished.
func (w *window) watermark() int64 {
	if len(w.entries) > 0 {
		return w.entries[0].offset
	}
	return w.next
}
