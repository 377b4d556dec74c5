// Command withstack runs a command, usually `go test`, beside one ephemeral
// devstack that all packages share, and ends with the command's exit code:
//
//	withstack -- go test ./...
//	withstack -count -- go test -json ./...
//	withstack -external -count -- go test -json -tags kafka ./...
//
// With -external nothing is started: the environment names the services.
// With -count the command's output is read as `go test -json`, printed as
// `go test` would, and summed up in a closing line "N passed, N failed, N
// skipped"; the three numbers are also appended to the file that
// CARRIL_TEST_COUNTS names, if it does. It is what `make test` and `make
// test-kafka` call.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/softcrum/carril/internal/devstack"
	"github.com/softcrum/carril/internal/testkit"
)

func main() {
	devstack.RunChildIfAsked()
	external := flag.Bool("external", false, "start nothing: the environment names the services")
	count := flag.Bool("count", false, "read the output as `go test -json` and close with the counts")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: withstack [-external] [-count] -- command...")
		os.Exit(2)
	}
	code, err := run(*external, *count, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "withstack:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// run starts the stack, runs the command and stops the stack, also when a
// signal asks this process to end.
func run(external, count bool, command []string) (code int, err error) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer cancel()
	env := os.Environ()
	if !external {
		stack, err := devstack.Start(ctx, devstack.Config{Ephemeral: true})
		if err != nil {
			return 1, err
		}
		defer func() { err = errors.Join(err, stop(stack)) }()
		env = append(env, addresses(stack)...)
	}
	return runCommand(ctx, command, env, count)
}

func stop(stack *devstack.Stack) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return stack.Stop(ctx)
}

func addresses(s *devstack.Stack) []string {
	return []string{
		testkit.EnvKafkaBrokers + "=" + strings.Join(s.KafkaBrokers, ","),
		testkit.EnvRegistryURL + "=" + s.RegistryURL,
		testkit.EnvPostgresURL + "=" + s.PostgresURL,
		testkit.EnvRedisURL + "=" + s.RedisURL,
	}
}

// runCommand runs the command in a process group of its own, so that it can
// be ended with all that it started.
func runCommand(ctx context.Context, command, env []string, count bool) (int, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 15 * time.Second
	var sum tally
	err := start(cmd, count, &sum)
	if cmd.Process != nil {
		// What the command left behind would hold the services.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	if count {
		fmt.Println(sum.line())
		err = errors.Join(err, sum.record(os.Getenv("CARRIL_TEST_COUNTS")))
	}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return 130, errors.New("interrupted")
	case errors.As(err, &exit):
		return max(exit.ExitCode(), 1), nil
	case err != nil:
		return 1, fmt.Errorf("run %s: %w", command[0], err)
	}
	return 0, nil
}

// start runs cmd to its end, its output through the tally when count is set.
func start(cmd *exec.Cmd, count bool, sum *tally) error {
	if !count {
		return cmd.Run()
	}
	r, w := io.Pipe()
	cmd.Stdout = w
	read := make(chan error, 1)
	go func() { read <- sum.read(r, os.Stdout) }()
	err := cmd.Run()
	_ = w.Close()
	return errors.Join(err, <-read)
}
