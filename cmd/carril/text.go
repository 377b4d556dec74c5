package main

import (
	"fmt"
	"strings"

	"github.com/softcrum/carril/internal/oneline"
)

// maxText is the most bytes of what an operator writes for the record.
const maxText = 500

// line is free text that is kept: a name, who does something. It may be empty.
type line string

// UnmarshalText refuses what would not stand in one line of a log or a table.
func (l *line) UnmarshalText(b []byte) error {
	s := strings.TrimSpace(string(b))
	if !oneline.Fits(s, maxText) {
		return fmt.Errorf("is one line of at most %d bytes, without control characters", maxText)
	}
	*l = line(s)
	return nil
}

// why is a line that must say something.
type why string

// UnmarshalText refuses what line does, and nothing.
func (w *why) UnmarshalText(b []byte) error {
	var l line
	if err := l.UnmarshalText(b); err != nil {
		return err
	}
	if l == "" {
		return fmt.Errorf("must not be empty")
	}
	*w = why(l)
	return nil
}
