package content

import (
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/osteele/liquid"
	"github.com/osteele/liquid/parser"
	"github.com/osteele/liquid/render"
)

// What one part of one message may cost. A template is a program of a tenant's
// that runs beside everybody's codes, and the library bounds none of this itself.
const (
	maxWork  = 1_000_000       // units of work
	maxKept  = 4 * MaxRendered // bytes that assign and capture keep in all
	maxValue = 256 << 10       // bytes that a filter may give
	maxItems = 10_000          // elements of a list that a filter may take or give
	maxTime  = 3 * time.Second // of a core, from smallWork on
	// smallWork is not timed, and hardly any message does more.
	smallWork = 20_000

	tagsPerUnit  = 64      // bytes of tags and outputs
	valuePerUnit = 4 << 10 // bytes of the largest value that they may work on
	itemBytes    = 4       // what an element of a list counts for
	tagsPerCheck = 2 << 10 // bytes of tags after which the clock is looked at
)

// The tags that meter puts into a template, and where it finds its work among
// the variables: no Liquid name has a space.
const (
	ownPrefix = "carril_"
	stepTag   = ownPrefix + "step"
	keptTag   = ownPrefix + "kept"
	workKey   = "carril work"
	// captureTag stands for capture, which the library lets nobody replace.
	captureTag = ownPrefix + "capture"
)

var errTooMuch = errors.New("the template does too much")

// work is what a part may still do.
type work struct {
	left, kept int
	largest    int // bytes of the largest value there is
	tags       int // units of the whole part's tags, once through
	over       bool
	timed      bool          // the goroutine has its thread to itself until end
	began      time.Duration // of the thread's, when it was
}

// newWork charges for the part once through: what loops add, they pay.
func newWork(tags, largest int) *work {
	w := &work{left: maxWork, kept: maxKept, largest: largest, tags: 1 + tags/tagsPerUnit}
	w.over = w.spend(w.tags) != nil
	return w
}

func (w *work) weight() int { return 1 + w.largest/valuePerUnit }

func (w *work) spend(units int) error {
	w.left -= units * w.weight()
	if w.left < 0 || w.left < maxWork-smallWork && w.late() {
		w.over = true
		return errTooMuch
	}
	return nil
}

// late counts the time that the work has had a core: a message must not fail
// because its process was stopped, or its machine was full.
func (w *work) late() bool {
	if !w.timed {
		runtime.LockOSThread()
		w.timed, w.began = true, threadTime()
	}
	return threadTime()-w.began > maxTime
}

// processStart is where wallTime counts from.
var processStart = time.Now()

func wallTime() time.Duration { return time.Since(processStart) }

// end is called by who made the work, on the same goroutine.
func (w *work) end() {
	if w.timed {
		runtime.UnlockOSThread()
	}
}

// keep counts a value that a variable holds from now on. All the part's tags
// may work on it.
func (w *work) keep(bytes int) error {
	if w.kept -= bytes; w.kept < 0 {
		w.over = true
		return errTooMuch
	}
	before := w.weight()
	w.largest = max(w.largest, bytes)
	if grown := w.weight() - before; grown > 0 {
		w.left -= w.tags * grown
	}
	return w.spend(1)
}

// registerLimits gives an engine the tags of meter, a capture that ends, and
// filters that do.
func registerLimits(engine *liquid.Engine) {
	registerFilters(engine)
	engine.RegisterTag(stepTag, func(c render.Context) (string, error) {
		units, _ := strconv.Atoi(c.TagArgs())
		return "", workOf(c).spend(units)
	})
	engine.RegisterTag(keptTag, func(c render.Context) (string, error) {
		return "", workOf(c).keep(sizeOf(c.Get(c.TagArgs())))
	})
	engine.RegisterBlock(captureTag, func(c render.Context) (string, error) {
		w := workOf(c)
		inner := &bounded{left: min(MaxRendered, w.kept)}
		if err := c.RenderChildren(inner); err != nil {
			return "", err
		}
		c.Set(strings.Trim(c.TagArgs(), `"'`), inner.buf.String())
		return "", w.keep(inner.buf.Len())
	})
}

func workOf(c render.Context) *work { return c.Bindings()[workKey].(*work) }

// sizeOf counts the bytes that a value holds, roughly: what is in a list's or
// an object's elements was counted where it came from.
func sizeOf(v any) int {
	switch v := v.(type) {
	case string:
		return len(v)
	case []any:
		return itemBytes * len(v)
	case []string:
		return itemBytes * len(v)
	case map[string]any:
		return itemBytes * len(v)
	}
	return 0
}

// dashed finds which sides of a tag trim the space around it.
func dashed(source string) (left, right string) {
	if len(source) > 5 && source[2] == '-' {
		left = "-"
	}
	if len(source) > 5 && source[len(source)-3] == '-' {
		right = "-"
	}
	return left, right
}

// own writes a tag of meter's. It trims like the tag that it stands beside:
// writing nothing between a dash and its text would end the trimming.
func own(dash, name string, arg any) string {
	return fmt.Sprintf("{%%%s %s %v %s%%}", dash, name, arg, dash)
}

// meter puts a step into every loop, which pays for the tags in it, one here and
// there where there is none, and a count behind every assign. tags is the cost of
// all tags and outputs. A template with tags of meter's is no Liquid.
func meter(src string) (out string, tags int, err error) {
	tokens := parser.Scan(src, parser.SourceLoc{}, nil)
	inLoop := loopTags(tokens)
	var b strings.Builder
	since, verbatim := 0, ""
	for i, t := range tokens {
		left, right := dashed(t.Source)
		isTag := t.Type == parser.TagTokenType
		switch {
		case isTag && verbatim != "":
			if t.Name == verbatim {
				verbatim = ""
			}
		case isTag && (t.Name == "raw" || t.Name == "comment"):
			verbatim = "end" + t.Name
		case isTag && strings.HasPrefix(strings.TrimPrefix(t.Name, "end"), ownPrefix):
			return "", 0, &Error{Reason: ReasonTemplateInvalid}
		case isTag && (t.Name == "capture" || t.Name == "endcapture"):
			b.WriteString(strings.Replace(t.Source, "capture", captureTag, 1))
			tags, since = tags+cost(t), 0
			continue
		case isTag && (t.Name == "for" || t.Name == "tablerow"):
			b.WriteString(t.Source + own(right, stepTag, 1+inLoop[i]/tagsPerUnit))
			tags, since = tags+cost(t), 0
			continue
		case isTag && t.Name == "assign":
			name, _, _ := strings.Cut(t.Args, "=")
			b.WriteString(t.Source + own(right, keptTag, strings.TrimSpace(name)))
			tags, since = tags+cost(t), 0
			continue
		case t.Type == parser.ObjTokenType && verbatim == "" && since > tagsPerCheck:
			b.WriteString(own(left, stepTag, 0))
			since = 0
		}
		if t.Type == parser.ObjTokenType || isTag {
			tags, since = tags+cost(t), since+cost(t)
		}
		b.WriteString(t.Source)
	}
	return b.String(), tags, nil
}

// cost is what a tag counts for, in bytes: a filter goes through all of a value.
func cost(t parser.Token) int { return len(t.Source) + 8*tagsPerUnit*strings.Count(t.Args, "|") }

// loopTags sums for each loop, by the index of its token, the cost of the tags and
// outputs up to its end.
func loopTags(tokens []parser.Token) map[int]int {
	sums, open, sum := map[int]int{}, []int{}, 0
	for i, t := range tokens {
		if t.Type == parser.ObjTokenType || t.Type == parser.TagTokenType {
			sum += cost(t)
		}
		if t.Type != parser.TagTokenType {
			continue
		}
		switch t.Name {
		case "for", "tablerow":
			open = append(open, i)
			sums[i] = -sum
		case "endfor", "endtablerow":
			if len(open) > 0 {
				sums[open[len(open)-1]] += sum
				open = open[:len(open)-1]
			}
		}
	}
	for _, i := range open { // never closed: the library refuses it
		sums[i] = 0
	}
	return sums
}

// quoted finds the strings in a tag, filterNames what is behind its bars.
var (
	quoted      = regexp.MustCompile(`"[^"]*"|'[^']*'`)
	filterNames = regexp.MustCompile(`\|\s*(\w+)`)
)

// unknownFilter finds a filter that there is none of: a message would fail on
// it, when it comes to it.
func unknownFilter(src string) (string, bool) {
	known := map[string]bool{}
	standardFilters(func(name string, _ any) { known[name] = true })
	verbatim := ""
	for _, t := range parser.Scan(src, parser.SourceLoc{}, nil) {
		isTag := t.Type == parser.TagTokenType
		switch {
		case isTag && verbatim != "":
			if t.Name == verbatim {
				verbatim = ""
			}
			continue
		case isTag && (t.Name == "raw" || t.Name == "comment"):
			verbatim = "end" + t.Name
		}
		if verbatim != "" || t.Type != parser.ObjTokenType && !isTag {
			continue
		}
		for _, m := range filterNames.FindAllStringSubmatch(quoted.ReplaceAllString(t.Args, `""`), -1) {
			if !known[m[1]] {
				return m[1], true
			}
		}
	}
	return "", false
}
