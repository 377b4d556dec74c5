package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// tally counts the tests in the output of `go test -json` and prints what
// `go test` prints without -v: one line a package, and the output of what
// failed. The zero value is ready.
type tally struct {
	passed, failed, skipped int

	broken   []string // packages that failed without a failed test
	outputs  map[test]*strings.Builder
	failures map[string]int // by package
}

// event is one line of that output.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

// test names one test of one package; an empty name is the package itself.
type test struct{ pkg, name string }

// read takes the events in r until its end.
func (s *tally) read(r io.Reader, out io.Writer) error {
	s.outputs, s.failures = map[test]*strings.Builder{}, map[string]int{}
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		if json.Unmarshal(line, &e) == nil && e.Action != "" {
			s.take(e, out)
		} else {
			_, _ = out.Write(line) // a tool's own words
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the test output: %w", err)
		}
	}
}

func (s *tally) take(e event, out io.Writer) {
	id := test{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(out, e.Output)
	case "output":
		if s.outputs[id] == nil {
			s.outputs[id] = &strings.Builder{}
		}
		s.outputs[id].WriteString(e.Output)
	case "pass", "fail", "skip":
		s.count(e)
		if output := s.outputs[id]; output != nil {
			show(e, output.String(), out)
			delete(s.outputs, id)
		}
	}
}

func (s *tally) count(e event) {
	switch {
	case e.Test == "" && e.Action == "fail" && s.failures[e.Package] == 0:
		s.failed++
		s.broken = append(s.broken, e.Package)
	case e.Test == "":
	case e.Action == "pass":
		s.passed++
	case e.Action == "skip":
		s.skipped++
	default:
		s.failed++
		s.failures[e.Package]++
	}
}

// show prints what a finished test or package has to say.
func show(e event, text string, out io.Writer) {
	if e.Action == "fail" {
		fmt.Fprint(out, text)
		return
	}
	if e.Test != "" {
		return
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "ok ") || strings.HasPrefix(line, "? ") {
			fmt.Fprint(out, line)
		}
	}
}

// line is the closing line, after the packages that did not even run.
func (s *tally) line() string {
	var extra string
	if len(s.broken) > 0 {
		slices.Sort(s.broken)
		extra = fmt.Sprintf("failed outside of a test: %s\n", strings.Join(s.broken, ", "))
	}
	return fmt.Sprintf("%s%d passed, %d failed, %d skipped", extra, s.passed, s.failed, s.skipped)
}

// record appends the numbers to the file at path, if there is one to append to.
func (s *tally) record(path string) error {
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("record the counts: %w", err)
	}
	_, err = fmt.Fprintf(f, "%d %d %d\n", s.passed, s.failed, s.skipped)
	return errors.Join(err, f.Close())
}
