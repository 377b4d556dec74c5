package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Violation is an invariant that does not hold.
type Violation struct {
	ID   string // L1 to L12, or VOID
	What string
}

// Text lists violations, at most so many.
func Text(vs []Violation, most int) string {
	var b strings.Builder
	for i, v := range vs {
		if i == most {
			fmt.Fprintf(&b, "… and %d more\n", len(vs)-most)
			break
		}
		fmt.Fprintf(&b, "%s: %s\n", v.ID, v.What)
	}
	return b.String()
}

// checker collects violations.
type checker struct {
	e     Evidence
	found []Violation

	rows  map[string][]Row        // by event id
	dead  map[string][]DeadLetter // by event id
	keyed map[[2]string][]Row     // by tenant and key
	sends map[string]Send
}

// Check judges evidence; nothing found means that every invariant holds.
func Check(e Evidence) []Violation {
	c := &checker{e: e, rows: map[string][]Row{}, dead: map[string][]DeadLetter{}, keyed: map[[2]string][]Row{}, sends: map[string]Send{}}
	for _, r := range e.Dump.Rows {
		c.rows[r.Event] = append(c.rows[r.Event], r)
		c.keyed[[2]string{r.Tenant, r.Key}] = append(c.keyed[[2]string{r.Tenant, r.Key}], r)
	}
	for _, d := range e.Dump.DeadLetters {
		if d.Event != "" {
			c.dead[d.Event] = append(c.dead[d.Event], d)
		}
	}
	for _, s := range e.Dump.Sends {
		c.sends[s.Send] = s
	}
	for _, check := range []func(){c.void, c.accepted, c.oneRowAKey, c.refused, c.terminal, c.sentOnce, c.noPhantoms, c.ordered,
		c.lattice, c.offsets, c.recovered, c.reconciled, c.canaries} {
		check()
	}
	return c.found
}

func (c *checker) add(id, format string, args ...any) {
	c.found = append(c.found, Violation{id, fmt.Sprintf(format, args...)})
}

// void: the fault must have happened.
func (c *checker) void() {
	for _, p := range c.e.Proofs {
		if p.Got < p.Want {
			c.add("VOID", "the run proves nothing: %s: %d, at least %d were promised", p.What, p.Got, p.Want)
		}
	}
}

// accepted is L1: each 202 is one row or one dead letter, with its body; and one
// key always got one id.
func (c *checker) accepted() {
	ids := map[[2]string]string{}
	for _, r := range c.e.Requests {
		id, ok := r.acceptedID()
		if !ok {
			continue
		}
		key := [2]string{r.Tenant, r.Key}
		if first, again := ids[key]; again {
			if first != id {
				c.add("L1", "key %s got two ids: %s, %s", r.Key, first, id)
			}
			continue
		}
		ids[key] = id
		rows, dead := c.rows[id], open(c.dead[id])
		switch {
		case len(rows)+len(dead) == 0:
			c.add("L1", "accepted id %s (key %s) has neither a row nor a dead letter", id, r.Key)
		case len(rows)+len(dead) > 1:
			c.add("L1", "accepted id %s (key %s) has %d rows and %d dead letters", id, r.Key, len(rows), len(dead))
		case len(rows) == 1 && (rows[0].Tenant != r.Tenant || rows[0].Key != r.Key || rows[0].Body != r.Body):
			c.add("L1", "the row of %s is not what was sent under key %s", id, r.Key)
		}
	}
}

// open leaves out what was put back on its topic: that one has a row by now.
func open(ds []DeadLetter) []DeadLetter {
	return slices.DeleteFunc(slices.Clone(ds), func(d DeadLetter) bool { return d.Status == "replayed" })
}

// oneRowAKey is L2.
func (c *checker) oneRowAKey() {
	for key, rows := range c.keyed {
		if len(rows) > 1 && key[1] != "" {
			c.add("L2", "key %s of tenant %s has %d rows", key[1], key[0], len(rows))
		}
	}
	for id, rows := range c.rows {
		if len(rows) > 1 && rows[0].Key == "" {
			c.add("L2", "event %s has %d rows", id, len(rows))
		}
	}
	fenced := map[string]bool{}
	for _, f := range c.e.Dump.Fences {
		fenced[f] = true
	}
	for id := range c.rows {
		if !fenced[id] {
			c.add("L2", "row %s has no fence: its repeat would be a second one", id)
		}
	}
	for f := range fenced {
		if len(c.rows[f]) == 0 {
			c.add("L2", "fence %s has no row: its repeat would be swallowed", f)
		}
	}
}

// refused is L3: a key that was refused and never accepted has no row.
func (c *checker) refused() {
	other := map[[2]string]bool{}
	for _, r := range c.e.Requests {
		if !strings.HasPrefix(r.Outcome, "4xx:") {
			other[[2]string{r.Tenant, r.Key}] = true
		}
	}
	for _, r := range c.e.Requests {
		key := [2]string{r.Tenant, r.Key}
		if !other[key] && len(c.keyed[key]) > 0 {
			c.add("L3", "key %s was refused (%s) and has a row", r.Key, r.Outcome)
			other[key] = true
		}
	}
}

// terminal is L4.
func (c *checker) terminal() {
	for _, s := range c.e.Dump.Sends {
		if !s.Terminal {
			c.add("L4", "send %s stands at %q", s.Send, s.Status)
		}
	}
	for _, j := range c.e.Dump.OpenJobs {
		c.add("L4", "job %s of %s stands at %s: %s", j.Job, j.Worker, j.State, j.Why)
	}
}

// sentOnce is L5: one key a send, and physical repeats no more than there were
// faults that allow them.
func (c *checker) sentOnce() {
	type logical struct{ event, recipient string }
	keys := map[logical]map[string]bool{}
	physical := map[string]int{}
	extra := 0
	for _, r := range c.e.Receipts {
		l := logical{cmp.Or(c.sends[r.Send].Event, r.Send), r.Recipient}
		if keys[l] == nil {
			keys[l] = map[string]bool{}
		}
		keys[l][r.Key] = true
		if physical[r.Key+"\n"+r.Send]++; physical[r.Key+"\n"+r.Send] > 1 {
			extra++
		}
	}
	for l, ks := range keys {
		if len(ks) > 1 {
			c.add("L5", "the message of %s was sent under %d keys", l.event, len(ks))
		}
	}
	if extra > c.e.Ambiguous {
		c.add("L5", "%d receipts were repeats, after %d ambiguous faults", extra, c.e.Ambiguous)
	}
}

// noPhantoms is L6: what came out has a cause here, of the same tenant; and every
// row was sent by somebody.
func (c *checker) noPhantoms() {
	for _, r := range c.e.Receipts {
		s, ok := c.sends[r.Send]
		switch {
		case !ok:
			c.add("L6", "a receipt of key %s belongs to no send", r.Key)
		case s.Tenant != r.Tenant:
			c.add("L6", "the receipt of send %s names another tenant", r.Send)
		case s.Recipient != "" && s.Recipient != r.Recipient:
			c.add("L6", "the receipt of send %s went to another recipient", r.Send)
		}
	}
	for _, d := range c.e.Deliveries {
		rows := c.rows[d.Event]
		switch {
		case !d.Signature:
			c.add("L6", "delivery %s has a bad signature", d.ID)
		case len(rows) == 0:
			c.add("L6", "delivery %s belongs to no row", d.ID)
		case rows[0].Tenant != d.Tenant:
			c.add("L6", "delivery %s names another tenant", d.ID)
		}
	}
	sent := map[[2]string]map[string]bool{}
	for _, r := range c.e.Requests {
		key := [2]string{r.Tenant, r.Key}
		if sent[key] == nil {
			sent[key] = map[string]bool{}
		}
		sent[key][r.Body] = true
	}
	for key, rows := range c.keyed {
		if rows[0].Kind == "platform" || len(c.e.Requests) == 0 {
			continue
		}
		bodies, ok := sent[key]
		if !ok {
			c.add("L6", "row %s of tenant %s was sent by nobody", rows[0].Event, rows[0].Tenant)
		} else if !bodies[rows[0].Body] {
			c.add("L6", "row %s has a body that nobody sent", rows[0].Event)
		}
	}
}

// ordered is L7: rows of an order key carry a non-decreasing sequence.
func (c *checker) ordered() {
	seq := map[[2]string]Request{}
	for _, r := range c.e.Requests {
		if r.OrderKey != "" {
			seq[[2]string{r.Tenant, r.Key}] = r
		}
	}
	rows := slices.Clone(c.e.Dump.Rows)
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Or(cmp.Compare(a.Lane, b.Lane), cmp.Compare(a.LaneSeq, b.LaneSeq)) })
	type order struct {
		tenant, key string
		lane        int32
	}
	last := map[order]int64{}
	for _, row := range rows {
		r, ok := seq[[2]string{row.Tenant, row.Key}]
		if !ok {
			continue
		}
		o := order{row.Tenant, r.OrderKey, row.Lane}
		if r.Seq < last[o] {
			c.add("L7", "order key %s: %d comes after %d", r.OrderKey, r.Seq, last[o])
		}
		last[o] = max(last[o], r.Seq)
	}
}

// ranks is the lattice of statuses as the requirements give it.
var ranks = map[string]int{"queued": 1, "sent": 2, "delayed": 3, "soft_bounced": 4, "failed": 5, "delivered": 6, "opened": 7, "clicked": 8, "bounced": 9, "complained": 10}

// lattice is L8: the final status is the highest that was reported.
func (c *checker) lattice() {
	want := map[string]string{}
	for _, r := range c.e.Receipts {
		for _, s := range r.Reported {
			if ranks[s] > ranks[want[r.Send]] {
				want[r.Send] = s
			}
		}
	}
	for send, status := range want {
		if s := c.sends[send]; ranks[s.Status] < ranks[status] {
			c.add("L8", "send %s stands at %q, and %q was reported", send, s.Status, status)
		}
	}
}

// offsets is L9: nothing is committed that is not persisted, and in the end
// nothing is behind.
func (c *checker) offsets() {
	type place struct {
		stage, topic string
		partition    int32
	}
	last := map[place]Sample{}
	for _, s := range c.e.Samples {
		if s.Committed > s.Persisted {
			c.add("L9", "%s %s/%d: %d is committed and only %d persisted", s.Stage, s.Topic, s.Partition, s.Committed, s.Persisted)
		}
		p := place{s.Stage, s.Topic, s.Partition}
		if s.Persisted < last[p].Persisted {
			c.add("L9", "%s %s/%d: the position went back from %d to %d", s.Stage, s.Topic, s.Partition, last[p].Persisted, s.Persisted)
		}
		last[p] = s
	}
	for p, s := range last {
		if s.Persisted < s.End || s.Committed >= 0 && s.Committed < s.End {
			c.add("L9", "%s %s/%d: stands at %d of %d in the end", p.stage, p.topic, p.partition, min(s.Persisted, s.Committed), s.End)
		}
	}
}

// recovered is L10.
func (c *checker) recovered() {
	for _, r := range c.e.Recoveries {
		if r.Got > r.Bound {
			c.add("L10", "%s: %.1f %s, at most %.1f", r.What, r.Got, r.Unit, r.Bound)
		}
	}
}

// reconciled is L11: the counts add up, and each lane is contiguous, relayed, and
// published as it stands.
func (c *checker) reconciled() {
	accepted := map[string]bool{}
	for _, r := range c.e.Requests {
		if id, ok := r.acceptedID(); ok {
			accepted[id] = true
		}
	}
	kept := 0
	for id := range accepted {
		kept += min(1, len(c.rows[id])+len(open(c.dead[id])))
	}
	if kept != len(accepted) {
		c.add("L11", "%d were accepted, %d are rows or dead letters", len(accepted), kept)
	}
	for _, n := range c.e.Counters {
		if n.Got != n.Want {
			c.add("L11", "%s says %d, the ledger %d", n.Name, n.Got, n.Want)
		}
	}
	for _, l := range c.e.Dump.Lanes {
		if l.Count != l.Counter || l.Count > 0 && (l.First != 1 || l.Last != l.Counter) {
			c.add("L11", "lane %d of %s holds %d messages, %d to %d, and has given out %d", l.Lane, l.Store, l.Count, l.First, l.Last, l.Counter)
		}
		if l.Cursor < l.Counter {
			c.add("L11", "the relay of lane %d stands at %d of %d", l.Lane, l.Cursor, l.Counter)
		}
	}
	if c.e.Dump.Published == nil {
		return
	}
	for id := range c.rows {
		if c.e.Dump.Published[id] == 0 {
			c.add("L11", "row %s was never published", id)
		}
	}
	for id := range c.e.Dump.Published {
		if len(c.rows[id]) == 0 {
			c.add("L11", "%s was published and has no row", id)
		}
	}
}

// canaries is L12.
func (c *checker) canaries() {
	for _, l := range c.e.Logs {
		for i, canary := range c.e.Canaries {
			if canary != "" && strings.Contains(l.Text, canary) {
				c.add("L12", "the log of %s has canary %d", l.From, i)
			}
		}
	}
}
