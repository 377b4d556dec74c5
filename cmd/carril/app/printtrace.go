package app

import (
	"fmt"
	"io"
	"time"

	"github.com/softcrum/carril/ingestor/manage"
)

// PrintTrace writes a trace for people: each step with its distance from the
// first.
func PrintTrace(w io.Writer, t *manage.Trace) {
	fmt.Fprintf(w, "event %s %s\n", t.EventID, t.EventName)
	for _, s := range t.Steps {
		PrintStep(w, t, s)
	}
}

// PrintStep writes one step of a trace.
func PrintStep(w io.Writer, t *manage.Trace, s manage.Step) {
	var since time.Duration
	if len(t.Steps) > 0 {
		since = s.At.Sub(t.Steps[0].At)
	}
	fmt.Fprintf(w, "  %+7d ms  %-18s %s\n", since.Milliseconds(), s.Step, about(s))
}

func about(s manage.Step) string {
	out := ""
	add := func(format string, args ...any) {
		if out != "" {
			out += "  "
		}
		out += fmt.Sprintf(format, args...)
	}
	if s.Points != nil {
		add("%+d", *s.Points)
	}
	if s.EventType != "" {
		add("%s", s.EventType)
	}
	if s.Channel != "" {
		add("%s", s.Channel)
	}
	if s.ContactID != nil {
		add("contact %s", *s.ContactID)
	}
	if s.SendID != nil {
		add("send %s", *s.SendID)
	} else if s.RequestID != nil {
		add("request %s", *s.RequestID)
	}
	if s.Reason != "" {
		add("(%s)", s.Reason)
	}
	return out
}
