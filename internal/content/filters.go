package content

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/osteele/liquid"
	"github.com/osteele/liquid/filters"
	"github.com/osteele/liquid/values"
)

// decimal is a number with a fraction, or a result of arithmetic. It is written
// as people write it: the library's floats turn into 1.2345675e+06 from a million on.
type decimal float64

func (d decimal) String() string { return strconv.FormatFloat(float64(d), 'f', -1, 64) }

// tooMuch is thrown by a filter; run makes it ReasonTooLarge.
type tooMuch struct{}

type dictionary func(name string, fn any)

func (d dictionary) AddFilter(name string, fn any) { d(name, fn) }

// dateFilter is the library's date.
type dateFilter = func(time.Time, func(string) string) (string, error)

// standardFilters calls add with every filter there is: the library's, and ours
// in the place of those whose cost has nothing to do with what they are given.
func standardFilters(add dictionary) {
	filters.AddStandardFilters(dictionary(func(name string, fn any) {
		if date, ok := fn.(dateFilter); ok {
			fn = narrowDate(date)
		}
		add(name, fn)
	}))
	add("replace", replace)
	add("join", join)
	add("uniq", uniq)
	add("truncate", truncate)
	add("truncatewords", truncateWords)
}

// wideField is a field of a date that is padded to a thousand characters and more.
var wideField = regexp.MustCompile(`%[^a-zA-Z%]*\d{4}`)

func narrowDate(date dateFilter) dateFilter {
	return func(t time.Time, format func(string) string) (string, error) {
		if wideField.MatchString(format("")) {
			panic(tooMuch{})
		}
		return date(t, format)
	}
}

func registerFilters(engine *liquid.Engine) {
	standardFilters(func(name string, fn any) { engine.RegisterFilter(name, limited(fn)) })
}

// limited is a filter that takes and gives no more than it may, and whose
// numbers are decimals.
func limited(fn any) any {
	f := reflect.ValueOf(fn)
	t := f.Type()
	anything := reflect.TypeFor[any]()
	in, out := make([]reflect.Type, t.NumIn()), make([]reflect.Type, t.NumOut())
	for i := range in {
		if in[i] = t.In(i); in[i].Kind() == reflect.Slice {
			in[i] = anything // the library would make a list of a range of any length first
		}
	}
	for i := range out {
		out[i] = t.Out(i)
	}
	out[0] = anything
	wrapped := reflect.MakeFunc(reflect.FuncOf(in, out, false), func(args []reflect.Value) []reflect.Value {
		for i := range args {
			args[i] = limitedArgument(args[i], t.In(i))
		}
		results := f.Call(args)
		results[0] = limitedResult(results[0])
		return results
	})
	return wrapped.Interface()
}

func limitedArgument(arg reflect.Value, want reflect.Type) reflect.Value {
	if arg.Kind() != reflect.Interface {
		return arg
	}
	v := arg.Interface()
	if n, ok := v.(decimal); ok {
		v = float64(n)
	}
	if ranged, ok := v.(values.Range); ok && ranged.Len() > maxItems {
		panic(tooMuch{})
	}
	if rv := reflect.ValueOf(v); rv.Kind() == reflect.Slice && rv.Len() > maxItems {
		panic(tooMuch{})
	}
	if v == nil {
		return reflect.Zero(want)
	}
	if want.Kind() == reflect.Slice {
		return reflect.ValueOf(values.MustConvert(v, want))
	}
	boxed := reflect.New(want).Elem()
	boxed.Set(reflect.ValueOf(v))
	return boxed
}

func limitedResult(result reflect.Value) reflect.Value {
	v := result.Interface()
	switch n := v.(type) {
	case float64:
		v = decimal(n)
	case int64:
		v = int(n)
	}
	rv := reflect.ValueOf(v)
	switch kind := rv.Kind(); {
	case kind == reflect.String && rv.Len() > maxValue, kind == reflect.Slice && rv.Type().Elem().Kind() == reflect.Uint8 && rv.Len() > maxValue,
		kind == reflect.Slice && rv.Type().Elem().Kind() != reflect.Uint8 && rv.Len() > maxItems:
		panic(tooMuch{})
	}
	boxed := reflect.New(reflect.TypeFor[any]()).Elem()
	if v != nil {
		boxed.Set(reflect.ValueOf(v))
	}
	return boxed
}

// replace and join multiply the lengths of what they are given.
func replace(s, old, by string) string {
	if n := strings.Count(s, old); len(s)+n*(len(by)-len(old)) > maxValue {
		panic(tooMuch{})
	}
	return strings.ReplaceAll(s, old, by)
}

func join(list []any, sep func(string) string) any {
	between, parts, size := sep(" "), make([]string, 0, len(list)), 0
	for _, v := range list {
		if v == nil {
			continue
		}
		parts = append(parts, fmt.Sprint(v))
		if size += len(between) + len(parts[len(parts)-1]); size > maxValue+len(between) {
			panic(tooMuch{})
		}
	}
	return strings.Join(parts, between)
}

// uniq compares by what a value reads as, in the place of each with each.
func uniq(list []any) (out []any) {
	seen := map[string]bool{}
	for _, v := range list {
		if key := fmt.Sprintf("%T %v", v, v); !seen[key] {
			seen[key] = true
			out = append(out, v)
		}
	}
	return out
}

// truncate and truncateWords are the library's, without a regular expression made
// for each call.
func truncate(s string, length func(int) int, ellipsis func(string) string) string {
	n, more := length(50), ellipsis("...")
	runes := []rune(s)
	if len(runes) <= n {
		return s
	}
	return string(runes[:max(0, n-utf8.RuneCountInString(more))]) + more
}

func truncateWords(s string, length func(int) int, ellipsis func(string) string) string {
	n, more, inWord := length(15), ellipsis("..."), false
	if n <= 0 {
		return s
	}
	for i, r := range s {
		switch {
		case !unicode.IsSpace(r):
			inWord = true
		case inWord:
			if inWord, n = false, n-1; n == 0 && strings.TrimSpace(s[i:]) != "" {
				return s[:i] + more
			}
		}
	}
	return s
}
