// Package devstack runs the parts that Carril needs when nobody gave an
// address for them: a broker and a schema registry, PostgreSQL, Redis and a
// folder for files, all on loopback and for one machine only. It owns their
// data folder, their ports and their processes: they end with the process
// that started them, even by kill -9, and what they stored is there at the
// next start.
//
// It leaves topics, migrations and partitions to its callers: `carril dev`,
// the bench, and internal/testkit. The broker is a child that runs the same
// executable again, so main and TestMain call RunChildIfAsked first of all.
package devstack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// Part names one thing that a Stack provides.
type Part string

// The parts of a Stack. The broker and the registry share one child process.
const (
	Kafka    Part = "kafka"
	Registry Part = "registry"
	Postgres Part = "postgres"
	Redis    Part = "redis"
	Storage  Part = "storage"
)

// ErrInUse is returned by Start when another process runs a Stack on the same
// data folder.
var ErrInUse = errors.New("the data folder is in use by another process")

// ErrNoChild is returned by Start in a process that is itself the broker
// child: its main did not call RunChildIfAsked.
var ErrNoChild = errors.New("main or TestMain must call devstack.RunChildIfAsked before anything else")

// Config says where a Stack keeps its data and which parts it need not run.
type Config struct {
	// Dir is the data folder, made when it is absent. Empty is allowed for an
	// ephemeral stack alone: a temporary folder, removed by Stop.
	Dir string

	// KafkaBrokers, RegistryURL, PostgresURL, RedisURL and StorageURL each
	// replace the embedded part by one that runs already. Empty: embedded.
	KafkaBrokers []string
	RegistryURL  string
	PostgresURL  string
	RedisURL     string
	StorageURL   string

	// Parts limits what is started. Nil: all of them.
	Parts []Part

	// Ephemeral gives up durability for speed (no fsync anywhere). For tests.
	Ephemeral bool

	// Log receives starts, restarts and stops. Nil: nothing is logged.
	Log *slog.Logger
}

// Stack is a running set of parts. Its exported fields are set by Start and
// constant afterwards; the address of a part that was not asked for is empty.
type Stack struct {
	KafkaBrokers []string
	RegistryURL  string
	PostgresURL  string // the database "carril"
	RedisURL     string
	StorageURL   string

	// Embedded describes, for each part that runs here, what it is and where
	// its data lies: "PostgreSQL 15.18, private cluster in DIR/postgres".
	Embedded map[Part]string

	cfg     Config
	dir     string
	ports   *ports
	log     *slog.Logger
	failed  chan error
	release []func() // closes what is no process, in order of opening

	mu    sync.Mutex
	procs map[Part]*process

	stop    sync.Once
	stopErr error
}

// Start brings up every part that cfg does not replace and returns when all
// of them answer. ctx bounds the start alone; Stop ends the stack. When a
// part cannot start, those already up are stopped and the error says which
// part and where its log lies.
func Start(ctx context.Context, cfg Config) (*Stack, error) {
	if os.Getenv(childEnv) != "" {
		return nil, ErrNoChild
	}
	s, err := open(cfg)
	if err != nil {
		return nil, err
	}
	if err := s.startParts(ctx); err != nil {
		return nil, errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// open takes the data folder and its ports, before any process is started.
func open(cfg Config) (*Stack, error) {
	s := &Stack{
		KafkaBrokers: cfg.KafkaBrokers, RegistryURL: cfg.RegistryURL, PostgresURL: cfg.PostgresURL,
		RedisURL: cfg.RedisURL, StorageURL: cfg.StorageURL,
		Embedded: map[Part]string{},
		cfg:      cfg, log: cfg.Log,
		failed: make(chan error, 8),
		procs:  map[Part]*process{},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	dir, err := dataDir(cfg)
	if err != nil {
		return nil, err
	}
	s.dir = dir
	unlock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	s.release = append(s.release, unlock)
	if cfg.Dir == "" {
		s.release = append([]func(){func() { _ = os.RemoveAll(dir) }}, s.release...)
	}
	if s.ports, err = openPorts(filepath.Join(dir, "ports.json")); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// startParts starts PostgreSQL beside the others: it takes the longest.
func (s *Stack) startParts(ctx context.Context) error {
	starts := []func(context.Context) error{s.startPostgres, s.startBroker, s.startRedis, s.startStorage}
	errs := make([]error, len(starts))
	var wg sync.WaitGroup
	for i, start := range starts {
		wg.Go(func() { errs[i] = start(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// wants reports whether the part runs here: asked for, and not given.
func (s *Stack) wants(p Part, given bool) bool {
	return !given && (s.cfg.Parts == nil || slices.Contains(s.cfg.Parts, p))
}

// embed records a part that runs here.
func (s *Stack) embed(p Part, description string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Embedded[p] = description
}

// launch starts a child process for the part and keeps it running until Stop.
func (s *Stack) launch(ctx context.Context, p Part, spec processSpec) error {
	proc := newProcess(p, spec, s.log, s.failed)
	if err := proc.start(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.procs[p] = proc
	return nil
}

// PID returns the process id of the part's child, 0 when it has none at this
// moment. The id changes when a child died and was restarted.
func (s *Stack) PID(p Part) int {
	s.mu.Lock()
	proc := s.procs[p]
	s.mu.Unlock()
	if proc == nil {
		return 0
	}
	return proc.pid()
}

// Failed yields an error when a part died and could not be restarted. It is
// never closed.
func (s *Stack) Failed() <-chan error { return s.failed }

// Stop ends every part and waits for it, forcing what is still there when ctx
// ends. A second call waits for the first and returns its error.
func (s *Stack) Stop(ctx context.Context) error {
	s.stop.Do(func() { s.stopErr = s.stopAll(ctx) })
	return s.stopErr
}

func (s *Stack) stopAll(ctx context.Context) error {
	s.mu.Lock()
	procs := s.procs
	s.procs = map[Part]*process{}
	s.mu.Unlock()

	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for part, proc := range procs {
		wg.Go(func() {
			if err := proc.stop(ctx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("stop the embedded %s: %w", part, err))
			}
		})
	}
	wg.Wait()
	s.close()
	return errors.Join(errs...)
}

func (s *Stack) close() {
	for _, release := range slices.Backward(s.release) {
		release()
	}
	s.release = nil
}

// addRelease registers something to close after the processes ended.
func (s *Stack) addRelease(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release = append(s.release, f)
}

// startStorage makes the folder for files.
func (s *Stack) startStorage(context.Context) error {
	if !s.wants(Storage, s.StorageURL != "") {
		return nil
	}
	dir := filepath.Join(s.dir, "storage")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("make the storage folder: %w", err)
	}
	s.StorageURL = "file://" + filepath.ToSlash(dir)
	s.embed(Storage, "folder "+dir)
	return nil
}
