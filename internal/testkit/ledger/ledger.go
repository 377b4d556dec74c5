// Package ledger is how a fault run is judged: what "nothing lost, no duplicate
// effect" means, in records that the test keeps and the system never sees.
//
// A Book has four append-only parts: A, what the client sent and what it was
// told; B, what the provider received; C, what the webhook sink received; D,
// what the database holds at the end. Check holds them against each other and
// gives every violation under the id of its invariant, L1 to L12. A run in which
// the fault did not happen proves nothing: what a test promised of its fault it
// gives as a Proof, and one that was not kept is a violation VOID.
//
// The tests of the product write and judge books; the package reads the database
// itself (Read) and shares no code with what it judges.
package ledger

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Request is one request of part A: an event that a client sent, and its
// outcome. A repeat of the same key is a request of its own.
type Request struct {
	Tenant   string    `json:"tenant"`
	Key      string    `json:"idem_key"`
	OrderKey string    `json:"order_key"` // "": its order does not matter
	Seq      int64     `json:"seq"`       // within the order key
	Body     string    `json:"body_sha256"`
	SentAt   time.Time `json:"t_send"`
	Outcome  string    `json:"outcome"` // Accepted, Refused, Failed or Unknown
}

// Unknown is the outcome of a request that got no answer: a timeout, a reset.
const Unknown = "unknown"

// Accepted is the outcome of a 202 with its id.
func Accepted(id string) string { return "202:" + id }

// Refused is the outcome of a 4xx.
func Refused(code string) string { return "4xx:" + code }

// Failed is the outcome of a 5xx.
func Failed(code string) string { return "5xx:" + code }

func (r Request) acceptedID() (string, bool) { return strings.CutPrefix(r.Outcome, "202:") }

// Body is the hash that A and D compare: of an event's name and of its
// properties as PostgreSQL writes a jsonb, which the test must send in that form.
func Body(name, properties string) string {
	sum := sha256.Sum256([]byte(name + "\n" + properties))
	return hex.EncodeToString(sum[:])
}

// Receipt is one physical receipt of a provider, part B.
type Receipt struct {
	Key       string    `json:"key"`
	Tenant    string    `json:"tenant"`
	Send      string    `json:"send_id"`
	Recipient string    `json:"recipient"`
	Body      string    `json:"body_sha256"`
	At        time.Time `json:"t"`
	Answer    string    `json:"answer"` // what the provider did, e.g. 200, hang
	Reported  []string  `json:"reported,omitempty"`
}

// Delivery is one receipt of a webhook sink, part C.
type Delivery struct {
	ID        string    `json:"webhook_id"`
	Tenant    string    `json:"tenant"`
	Event     string    `json:"event_id"`
	Attempt   int       `json:"attempt"`
	Signature bool      `json:"signature_ok"`
	OrderKey  string    `json:"order_key"`
	Seq       int64     `json:"seq"`
	At        time.Time `json:"t"`
}

// Sample is one look at a partition: what the group committed to Kafka, read
// before what the database holds.
type Sample struct {
	At        time.Time `json:"t"`
	Stage     string    `json:"stage"`
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	Committed int64     `json:"committed"` // -1: nothing yet
	Persisted int64     `json:"persisted"` // the first offset that is not
	End       int64     `json:"end"`       // the log's
}

// Proof is what a test promised of its fault: at least Want of What.
type Proof struct {
	What string `json:"what"`
	Want int    `json:"want"`
	Got  int    `json:"got"`
}

// Recovery is something that must be back within a bound: the time to zero
// backlog, or a size in comparison with its start.
type Recovery struct {
	What  string  `json:"what"`
	Got   float64 `json:"got"`
	Bound float64 `json:"bound"`
	Unit  string  `json:"unit"`
}

// Counter is a metric and the ledger's own count of the same.
type Counter struct {
	Name string `json:"name"`
	Got  int64  `json:"got"`
	Want int64  `json:"want"`
}

// Book is one run's ledger. Its methods may be called by many goroutines; a
// write that fails fails the test at the end.
type Book struct {
	t   testing.TB
	dir string

	mu    sync.Mutex
	files map[string]*os.File
	err   error
}

// Open makes an empty book in a folder of the test's own, which is kept and
// named when the test fails and CARRIL_TEST_LEDGERS names a folder.
func Open(t testing.TB) *Book {
	t.Helper()
	b := &Book{t: t, dir: t.TempDir(), files: map[string]*os.File{}}
	t.Cleanup(func() {
		b.close()
		if keep := os.Getenv("CARRIL_TEST_LEDGERS"); keep != "" && t.Failed() {
			to := filepath.Join(keep, strings.ReplaceAll(t.Name(), "/", "_"))
			if err := os.CopyFS(to, os.DirFS(b.dir)); err == nil {
				t.Logf("the ledger is kept in %s", to)
			}
		}
	})
	return b
}

func (b *Book) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.files {
		_ = f.Close()
	}
	b.files = map[string]*os.File{}
}

// Sent writes a request and its outcome to A.
func (b *Book) Sent(r Request) { b.add("a", r) }

// Received writes a receipt to B.
func (b *Book) Received(r Receipt) { b.add("b", r) }

// Delivered writes a webhook's receipt to C.
func (b *Book) Delivered(d Delivery) { b.add("c", d) }

// Sampled keeps a look at a partition.
func (b *Book) Sampled(s Sample) { b.add("samples", s) }

// Promise keeps what was promised of the fault, and what came of it.
func (b *Book) Promise(what string, want, got int) { b.add("proofs", Proof{what, want, got}) }

// Recovered keeps a time or a size that must be within a bound.
func (b *Book) Recovered(what string, got, bound float64, unit string) {
	b.add("recoveries", Recovery{what, got, bound, unit})
}

// Counted keeps a metric beside the ledger's own count.
func (b *Book) Counted(name string, got, want int64) { b.add("counters", Counter{name, got, want}) }

// Log keeps what a process logged, to be searched for canaries.
func (b *Book) Log(from, text string) { b.add("logs", Log{from, text}) }

// Log is the text that a process logged.
type Log struct {
	From string `json:"from"`
	Text string `json:"text"`
}

func (b *Book) add(part string, entry any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.files[part]
	if f == nil {
		var err error
		if f, err = os.OpenFile(b.path(part), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
			b.err = errors.Join(b.err, err)
			return
		}
		b.files[part] = f
	}
	line, err := json.Marshal(entry)
	if err == nil {
		_, err = f.Write(append(line, '\n'))
	}
	b.err = errors.Join(b.err, err)
}

func (b *Book) path(part string) string { return filepath.Join(b.dir, part+".ndjson") }

// Evidence is a book as it is judged.
type Evidence struct {
	Requests   []Request
	Receipts   []Receipt
	Deliveries []Delivery
	Samples    []Sample
	Proofs     []Proof
	Recoveries []Recovery
	Counters   []Counter
	Logs       []Log
	Dump       Dump

	// Ambiguous is the number of faults after which a provider may see a request
	// again; Canaries may stand in no log.
	Ambiguous int
	Canaries  []string
}

// Evidence reads the book back from its files, with D as it was read.
func (b *Book) Evidence(d Dump) (Evidence, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := Evidence{Dump: d}
	err := errors.Join(b.err, load(b.path("a"), &e.Requests), load(b.path("b"), &e.Receipts), load(b.path("c"), &e.Deliveries),
		load(b.path("samples"), &e.Samples), load(b.path("proofs"), &e.Proofs), load(b.path("recoveries"), &e.Recoveries),
		load(b.path("counters"), &e.Counters), load(b.path("logs"), &e.Logs))
	if raw, merr := json.Marshal(d); merr == nil { // D lies beside the others, for whoever looks into a failure
		err = errors.Join(err, os.WriteFile(b.path("d"), raw, 0o600))
	}
	if err != nil {
		return e, fmt.Errorf("read the ledger: %w", err)
	}
	return e, nil
}

func load[T any](path string, into *[]T) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	d := json.NewDecoder(bufio.NewReader(f))
	for d.More() {
		var v T
		if err := d.Decode(&v); err != nil {
			return err
		}
		*into = append(*into, v)
	}
	return nil
}

// Judge checks the book and fails the test with every violation.
func (b *Book) Judge(d Dump, change func(*Evidence)) {
	b.t.Helper()
	e, err := b.Evidence(d)
	if err != nil {
		b.t.Fatal(err)
	}
	if change != nil {
		change(&e)
	}
	if vs := Check(e); len(vs) > 0 {
		b.t.Fatalf("the ledger does not hold:\n%s", Text(vs, 20))
	}
}
