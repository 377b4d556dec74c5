package bench

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// Progress shows what runs, on one line of a terminal. Without a terminal it
// writes nothing.
type Progress struct {
	w io.Writer // nil: nothing is shown
}

// NewProgress shows progress on w where it is a terminal.
func NewProgress(w io.Writer) *Progress {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &Progress{w: f}
	}
	return &Progress{}
}

// Phase shows a phase until end is called; fraction says how far it is, 0 to 1,
// and may be nil where nobody knows.
func (p *Progress) Phase(name string, fraction func() float64) (end func()) {
	if p.w == nil {
		return func() {}
	}
	done := make(chan struct{})
	var drawing sync.WaitGroup
	drawing.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			fmt.Fprint(p.w, bar(name, fraction))
			select {
			case <-done:
				fmt.Fprint(p.w, "\r\x1b[K")
				return
			case <-tick.C:
			}
		}
	})
	return sync.OnceFunc(func() { close(done); drawing.Wait() })
}

// For shows a phase that takes d.
func (p *Progress) For(name string, d time.Duration) (end func()) {
	start := time.Now()
	return p.Phase(name, func() float64 { return float64(time.Since(start)) / float64(d) })
}

func bar(name string, fraction func() float64) string {
	if fraction == nil {
		return "\r\x1b[K" + name + " …"
	}
	const width = 30
	f := min(max(fraction(), 0), 1)
	full := int(f * width)
	return fmt.Sprintf("\r\x1b[K%-44s [%s%s] %3.0f %%", name, strings.Repeat("=", full), strings.Repeat(" ", width-full), 100*f)
}
