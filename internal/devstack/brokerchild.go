package devstack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

const (
	// predecessorWait is how long the child waits for the data folder and the
	// ports of the child before it, whose parent may have been killed.
	predecessorWait = 10 * time.Second
	// childGrace is how long the child may take to write its state at the end.
	childGrace = 10 * time.Second
)

// RunChildIfAsked turns this process into a child of a Stack and does not
// return, when the parent started it for that. main and TestMain call it
// before anything else: the child is the same executable, run again.
func RunChildIfAsked() {
	if os.Getenv(childEnv) != brokerChild {
		return
	}
	if err := runBroker(); err != nil {
		fmt.Fprintln(os.Stderr, "broker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// runBroker serves until the parent asks it to stop, or is gone.
func runBroker() error {
	var cfg brokerConfig
	if err := json.Unmarshal([]byte(os.Getenv(childConfigEnv)), &cfg); err != nil {
		return fmt.Errorf("read the settings: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ctx, orphaned := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends when the parent does
		orphaned()
	}()
	unlock, err := awaitDir(ctx, cfg.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	return serveBroker(ctx, cfg)
}

// awaitDir locks the broker's folder, which kfake does not do itself.
func awaitDir(ctx context.Context, dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("make the data folder: %w", err)
	}
	err = insist(ctx, func() (err error) {
		unlock, err = lockDir(dir)
		return err
	})
	return unlock, err
}

// insist tries f until it works or a predecessor had time enough to end.
func insist(ctx context.Context, f func() error) error {
	deadline := time.Now().Add(predecessorWait)
	for {
		err := f()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func serveBroker(ctx context.Context, cfg brokerConfig) error {
	closeRegistry, err := serveRegistry(ctx, cfg)
	if err != nil {
		return err
	}
	closeKafka, err := serveKafka(ctx, cfg)
	if err != nil {
		return errors.Join(err, closeRegistry())
	}
	fmt.Fprintln(os.Stderr, "broker and registry are up: one node without replication, for one machine only")
	<-ctx.Done()
	time.AfterFunc(childGrace, func() {
		fmt.Fprintln(os.Stderr, "broker: gave up writing its state")
		os.Exit(1)
	})
	closeKafka()
	return closeRegistry()
}

func serveKafka(ctx context.Context, cfg brokerConfig) (closeKafka func(), err error) {
	if cfg.KafkaPort == 0 {
		return func() {}, nil
	}
	opts := []kfake.Opt{
		kfake.Ports(cfg.KafkaPort),
		kfake.DataDir(filepath.Join(cfg.Dir, "log")),
		kfake.ClusterID("carril-embedded"),
		kfake.WithLogger(kfake.BasicLogger(os.Stderr, kfake.LogLevelWarn)),
	}
	if cfg.Sync {
		opts = append(opts, kfake.SyncWrites())
	}
	var cluster *kfake.Cluster
	err = insist(ctx, func() (err error) {
		cluster, err = kfake.NewCluster(opts...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("start the broker: %w", err)
	}
	return cluster.Close, nil
}

func serveRegistry(ctx context.Context, cfg brokerConfig) (closeRegistry func() error, err error) {
	if cfg.RegistryPort == 0 {
		return func() error { return nil }, nil
	}
	reg, err := openRegistry(filepath.Join(cfg.Dir, "registry.jsonl"), cfg.Sync, func(err error) {
		fmt.Fprintln(os.Stderr, "registry:", err)
		os.Exit(1)
	})
	if err != nil {
		return nil, err
	}
	var listener net.Listener
	err = insist(ctx, func() (err error) {
		listener, err = net.Listen("tcp", loopback(cfg.RegistryPort))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen for the registry: %w", err)
	}
	server := &http.Server{Handler: reg, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	return func() error {
		err := server.Close()
		<-done
		return errors.Join(err, reg.close())
	}, nil
}
