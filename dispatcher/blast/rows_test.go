package blast

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
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
		// Half of a surrogate pair and such numbers are JSON, and the database takes
		// neither: they would end a file with an error that nobody can do anything about.
		"NDJSONThatCannotBeKept": {File{Format: NDJSON}, strings.Join([]string{
			`{"address":"a@example.com","v":"\ud800"}`, `{"address":"a@example.com","v":"\udc00\ud800"}`, `{"address":"a@example.com","\ud83d x":1}`,
			`{"address":"a@example.com","v":"\ud83d\ude00 \\ud800 C:\\u0000 \\\\"}`, `{"address":"a@example.com","v":"\\\u0000"}`,
			`{"address":"a@example.com","v":[1e999999]}`, `{"address":"a@example.com","v":-1e-999999}`, `{"address":"a@example.com","v":1e99999999999999999999}`,
			`{"address":"a@example.com","v":` + strings.Repeat("9", 65) + `}`, `{"address":"a@example.com","v":[` + strings.Repeat("9", 64) + `,0.` + strings.Repeat("0", 399) + `1,-1E+308,"1e999999"]}`,
			`{"address":"a@example.com","v":` + strings.Repeat("[", 32) + strings.Repeat("]", 32) + `}`, `{"address":"a@example.com","v":` + strings.Repeat("[", 31) + strings.Repeat("]", 31) + `}`,
		}, "\n"), []string{`1 !invalid_character `, `2 !invalid_character `, `3 !invalid_character `,
			`4 address=a@example.com {"v":"\ud83d\ude00 \\ud800 C:\\u0000 \\\\"}`, `5 !invalid_character `, `6 !number_out_of_range `, `7 !number_out_of_range `, `8 !number_out_of_range `,
			`9 !number_out_of_range `, `10 address=a@example.com {"v":[` + strings.Repeat("9", 64) + `,0.` + strings.Repeat("0", 399) + `1,-1E+308,"1e999999"]}`,
			`11 !too_deep `, `12 address=a@example.com {"v":` + strings.Repeat("[", 31) + strings.Repeat("]", 31) + `}`}},
		// Seven bytes each, and 309 in the database.
		"NDJSONOfNumbersThatGrow": {File{Format: NDJSON}, `{"address":"a@example.com","v":[` + strings.Repeat("1e308,", 200) + `1]}` + "\n" + `{"address":"b@example.com","v":1e308}`,
			[]string{`1 !number_out_of_range `, `2 address=b@example.com {"v":1e308}`}},
		// What single messages are refused for their keys, a row keeps the last of.
		"NDJSONTwiceTheKeyWithin": {File{Format: NDJSON}, `{"address":"a@example.com","v":{"a":1,"a":2}}` + "\n" + `{"address":"a@example.com","v":{"a":1,"a":2},"w":"\u0000"}`,
			[]string{`1 address=a@example.com {"v":{"a":1,"a":2}}`, `2 !invalid_character `}},
		"NDJSONTwoFieldsForOne": {File{Format: NDJSON, Columns: map[string]string{"n": "name"}},
			`{"email":"a@example.com","phone":"+15005550006"}` + "\n" + `{"external_id":"c-1","external_id":"c-2"}` + "\n" + `{"address":"a@example.com","n":1,"name":2}` + "\n" +
				`{"external_id":"c-1","variables":{},"variables":{}}` + "\n" + `{"address":"a@example.com","n":1,"variables":{"name":2,"x":3}}`,
			[]string{`1 !duplicate_field address`, `2 !duplicate_field external_id`, `3 !duplicate_field `, `4 !duplicate_field `, `5 address=a@example.com {"name":1,"x":3}`}},
		"NDJSONMappedAsideOfKnown": {File{Format: NDJSON, Columns: map[string]string{"Correo": "address", "Nota": ""}}, `{"email":"b@example.com","Correo":"a@example.com","Nota":1}`,
			[]string{`1 address=a@example.com {"email":"b@example.com"}`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rows, err := readAll(c.file, strings.NewReader(c.body))
			require.NoError(t, err)
			require.Equal(t, c.rows, rows)
			rows, err = readAll(c.file, strings.NewReader(deflated(c.body)))
			require.NoError(t, err)
			require.Equal(t, c.rows, rows, "deflated")
		})
	}
}

func deflated(s string) string {
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	_, _ = w.Write([]byte(s)) // into memory
	_ = w.Close()
	return z.String()
}

func half(s string) string { return s[:len(s)/2] }

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
		"GzipOfTwoBytes":      {File{}, "\x1f\x8b", BadGzip, 1},
		"HalfAGzip":           {File{}, half(deflated("email\n" + strings.Repeat("ana@example.com\n", 9))), BadGzip, 2},
		"GzipWithATail":       {File{}, deflated("email\nana@example.com\n") + "tail", BadGzip, 3},
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
	// At each byte: an end that the connection made is never said to be the file's.
	for name, body := range map[string]string{CSV: "\ufeffsep=;\r\n\"email\";n\r\nana@example.com;\"a\"\"\r\nb\"\r\nleo@example.com;2\r\n",
		NDJSON: "{\"address\":\"ana@example.com\",\"v\":\"\\u00e9\"}\n\n{\"address\":\"leo@example.com\"}\n"} {
		for _, sent := range []string{body, deflated(body)} {
			for n := range len(sent) {
				_, err := readAll(File{Format: name}, io.MultiReader(strings.NewReader(sent[:n]), broken{}))
				require.ErrorIs(t, err, io.ErrUnexpectedEOF, "%s after %d bytes", name, n)
				require.NotErrorAs(t, err, new(*FileError), "%s after %d bytes", name, n)
			}
		}
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

// A draft's own variables and traits go by the same rule: a backslash before
// u0000 is text, and no NUL.
func TestADraftTakesWhatTheDatabaseCanKeep(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{`{"path":"C:\\u0000"}`: true, `{"n":1e308}`: true, `{"n":"\u0000"}`: false, `{"n":"\ud800"}`: false, `{"n":1e309}`: false} {
		for _, c := range []Change{{Variables: json.RawMessage(text)}, {Audience: &Audience{Type: FromContacts, Traits: json.RawMessage(text)}}} {
			require.Equal(t, ok, c.check() == nil, text)
		}
	}
}
