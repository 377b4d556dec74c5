package main

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What an operator writes for the record is one line wherever it is written, and
// is refused before anything is asked of the database.
func TestTextForTheRecordIsOneLine(t *testing.T) {
	const id = "0198c0de-0000-7000-8000-000000000001"
	for _, of := range []struct {
		args string // @ stands for the text
		must bool
	}{
		{"contact merge --tenant acme --reason @ a b", true},
		{"contact merge --tenant acme --reason x --by @ a b", false},
		{"contact unmerge --tenant acme --reason @ " + id, true},
		{"contact erase --tenant acme --by @ " + id, false},
		{"dlq discard --note @ " + id, true},
		{"dlq discard --note x --by @ " + id, false},
		{"dlq replay --note @ " + id, false},
		{"positions restored --confirm-restore --by @", false},
		{"sender pause --tenant acme --reason @", true},
		{"sender set --tenant acme @", true},
		{"tenant create acme --name @", false},
		{"tenant create acme --cell @", true},
		{"key create --tenant acme --name @", false},
		{"blast create --tenant acme --name x --template t --key @", false},
	} {
		texts := []string{"two\nlines", "a\x1b[2J", "a\x00b", "a\u2028x", strings.Repeat("x", 501)}
		if of.must {
			texts = append(texts, "", "  ")
		}
		for _, text := range texts {
			args := strings.Fields(of.args)
			args[slices.Index(args, "@")] = text
			code, _, errs := try(args...)
			require.Equal(t, exitUsage, code, "%s with %q: %s", of.args, text, errs)
			require.Regexp(t, "is one line of at most 500 bytes|must not be empty", errs, "%s with %q", of.args, text)
		}
	}
	var l line
	require.NoError(t, l.UnmarshalText([]byte(" Dos personas, un teléfono ")))
	require.Equal(t, line("Dos personas, un teléfono"), l)
}

// A new command that keeps what people write must not forget it.
func TestFieldsOfTextAreOfItsType(t *testing.T) {
	t.Parallel()
	seen := 0
	var walk func(path string, of reflect.Type)
	walk = func(path string, of reflect.Type) {
		for i := range of.NumField() {
			f := of.Field(i)
			at := fmt.Sprint(path, ".", f.Name)
			if f.Type.Kind() == reflect.Struct && strings.HasPrefix(f.Type.PkgPath(), "github.com/softcrum/carril/cmd") {
				walk(at, f.Type)
			}
			if slices.Contains([]string{"By", "Reason", "Note", "Name", "Cell", "Sender"}, f.Name) && f.Type.Kind() == reflect.String && at != "cli.Blast.Create.Name" { // the store checks that, as the API does
				seen++
				require.Contains(t, []reflect.Type{reflect.TypeFor[line](), reflect.TypeFor[why]()}, f.Type, at)
			}
		}
	}
	walk("cli", reflect.TypeFor[cli]())
	require.GreaterOrEqual(t, seen, 12)
}
