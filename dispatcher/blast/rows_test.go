package blast

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// readAll reads a file to its end: each row in one line of text.
func readAll(f File, body io.Reader) (out []string, err error) {
	rows, err := f.open(body)
	for err == nil {
		var r *row
		if r, err = rows.next(); err != nil {
			break
		}
		switch {
		case r.reason != "":
			out = append(out, fmt.Sprintf("%d !%s %s", r.n, r.reason, r.col))
		default:
			by, v := r.who()
			out = append(out, fmt.Sprintf("%d %s=%s %s", r.n, by, v, r.variables))
		}
	}
	if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return out, err
}

func TestFilesAsSpreadsheetsWriteThem(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		file File
		body string
		rows []string
	}{
		"Plain":              {File{}, "email,name\nana@example.com,Ana\n", []string{`2 address=ana@example.com {"name":"Ana"}`}},
		"ByteOrderMark":      {File{}, "\ufeffemail;name\r\nana@example.com;Ana\r\n", []string{`2 address=ana@example.com {"name":"Ana"}`}},
		"Semicolons":         {File{}, "name;Email\n\"Ruiz, Ana\";ana@example.com\n", []string{`2 address=ana@example.com {"name":"Ruiz, Ana"}`}},
		"Tabs":               {File{}, "external_id\ttotal\nc-1\t1,50\n", []string{`2 external_id=c-1 {"total":"1,50"}`}},
		"ExcelsOwnLine":      {File{}, "sep=;\r\nemail;a,b,c\r\nana@example.com;x\r\n", []string{`2 address=ana@example.com {"a,b,c":"x"}`}},
		"GivenDelimiter":     {File{Delimiter: ";"}, "email;a,b,c,d\nana@example.com;x\n", []string{`2 address=ana@example.com {"a,b,c,d":"x"}`}},
		"QuotedNewline":      {File{}, "email,note\nana@example.com,\"two\nlines\"\nleo@example.com,one\n", []string{`2 address=ana@example.com {"note":"two\nlines"}`, `3 address=leo@example.com {"note":"one"}`}},
		"DoubledQuotes":      {File{}, "email,note\nana@example.com,\"say \"\"hi\"\"\"\n", []string{`2 address=ana@example.com {"note":"say \"hi\""}`}},
		"NoLastNewline":      {File{}, "email\nana@example.com", []string{`2 address=ana@example.com {}`}},
		"MappedColumns":      {File{Columns: map[string]string{"Correo": "address", "Nombre": "name", "Nota": ""}}, "Correo;Nombre;Nota\nana@example.com;Ana;x\n", []string{`2 address=ana@example.com {"name":"Ana"}`}},
		"MappedAsideOfKnown": {File{Columns: map[string]string{"id": "external_id"}}, "id,email\nc-1,ana@example.com\n", []string{`2 external_id=c-1 {}`}},
		"UnnamedColumn":      {File{}, "email,,\nana@example.com,,\n", []string{`2 address=ana@example.com {}`}},
		"BadRowsBetween": {File{}, "email,name\nana@example.com,Ana\nshort\nb@example.com,\"a\"b\nc@example.com,x\x00y\nd@example.com,D\n",
			[]string{`2 address=ana@example.com {"name":"Ana"}`, `3 !wrong_number_of_columns `, `4 !malformed_quotes `, `5 !invalid_character name`, `6 address=d@example.com {"name":"D"}`}},
		"NDJSON": {File{Format: NDJSON}, `{"external_id":"c-1","name":"Ana","n":2}` + "\n\n" + `{"address":"leo@example.com","variables":{"name":"Leo"}}` + "\n" + `{"address":` + "\n" + `[1]` + "\n" + `{"address":7}` + "\n" + `{"address":"x@example.com","variables":[]}` + "\n" + `{"address":"y@example.com","v":"\u0000"}`,
			[]string{`1 external_id=c-1 {"n":2,"name":"Ana"}`, `3 address=leo@example.com {"name":"Leo"}`, `4 !malformed_json `, `5 !malformed_json `, `6 !no_identifier address`, `7 !invalid_variables variables`, `8 !invalid_character `}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rows, err := readAll(c.file, strings.NewReader(c.body))
			require.NoError(t, err)
			require.Equal(t, c.rows, rows)
			var z bytes.Buffer
			w := gzip.NewWriter(&z)
			_, _ = w.Write([]byte(c.body))
			require.NoError(t, w.Close())
			rows, err = readAll(c.file, &z)
			require.NoError(t, err)
			require.Equal(t, c.rows, rows, "deflated")
		})
	}
}

func TestFilesThatAreRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		file File
		body string
		code string
		row  int64
	}{
		"Windows1252":         {File{}, "email;name\nana@example.com;Ana\nleo@example.com;Le\xf3n\n", BadEncoding, 3},
		"Windows1252InHeader": {File{}, "email;a\xf1o\n", BadEncoding, 1},
		"Windows1252NDJSON":   {File{Format: NDJSON}, "{\"address\":\"a@example.com\",\"n\":\"\xf3\"}\n", BadEncoding, 1},
		"UTF16":               {File{}, "\xff\xfee\x00m\x00", BadEncoding, 1},
		"Empty":               {File{}, "", EmptyFile, 1},
		"NoColumn":            {File{}, "nombre,correo\nAna,ana@example.com\n", NoColumns, 1},
		"TwoOfOne":            {File{}, "email,address\na,b\n", TwiceTheColumn, 1},
		"MappedToNothingHere": {File{Columns: map[string]string{"Correo": "address"}}, "email\na@example.com\n", UnknownMapping, 1},
		"BadDelimiter":        {File{Delimiter: "|"}, "email\n", MixedDelimiters, 1},
		"QuoteNeverClosed":    {File{}, "email,note\nana@example.com,\"open\nb@example.com,x\nc@example.com,y\n", BadQuotes, 2},
		"QuoteOverTheLimit":   {File{}, "email,note\nana@example.com,\"open\n" + strings.Repeat("b@example.com,x\n", 20_000), RowTooLong, 2},
		"LongLine":            {File{Format: NDJSON}, `{"address":"` + strings.Repeat("x", 100_000) + "\"}\n", RowTooLong, 1},
		"NoGzip":              {File{}, "\x1f\x8bnonsense", BadGzip, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := readAll(c.file, strings.NewReader(c.body))
			var bad *FileError
			require.ErrorAs(t, err, &bad)
			require.Equal(t, fmt.Sprint(c.code, c.row), fmt.Sprint(bad.Code, bad.Row))
		})
	}
}

// A connection that breaks off says nothing of the file, and what it cut in two
// is no row.
func TestAFileThatBreaksOffIsNotAtItsEnd(t *testing.T) {
	t.Parallel()
	for _, f := range []File{{Format: CSV}, {Format: NDJSON}} {
		body := "email\nana@example.com\nleo@exam"
		if f.Format == NDJSON {
			body = "{\"address\":\"ana@example.com\"}\n{\"address\":\"leo@exa"
		}
		rows, err := readAll(f, io.MultiReader(strings.NewReader(body), broken{}))
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.Len(t, rows, 1, f.Format)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// Whatever stands in a file, reading it ends, and a second time gives the same:
// that is what resuming rests on.
func FuzzFiles(f *testing.F) {
	f.Add("email,name\nana@example.com,Ana\n", false)
	f.Add("sep=;\n\"a\"b;c\n\xff", false)
	f.Add(`{"address":"ana@example.com","variables":{"a":1}}`, true)
	f.Fuzz(func(t *testing.T, body string, lines bool) {
		file := File{Format: CSV}
		if lines {
			file.Format = NDJSON
		}
		one, err := readAll(file, strings.NewReader(body))
		two, again := readAll(file, strings.NewReader(body))
		require.Equal(t, one, two, "a repeated file gives the same rows")
		require.Equal(t, fmt.Sprint(err), fmt.Sprint(again))
	})
}
