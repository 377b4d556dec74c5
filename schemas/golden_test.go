package schemas

import (
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/avro"
)

var update = flag.Bool("update", false, "add what the corpus lacks to testdata/golden")

// A golden case is a record as a released schema wrote it: the schema, the
// bytes and the values. Cases are added, never changed: every old record stays
// readable by every later reader.
type goldenCase struct {
	Schema json.RawMessage `json:"schema"`
	Hex    string          `json:"hex"`
	Want   json.RawMessage `json:"want"`
}

func TestEveryOldRecordIsReadByTodaysReader(t *testing.T) {
	if *update {
		writeGolden(t)
	}
	for topic, typ := range recordTypes {
		name, _ := schemaOf(topic)
		files, err := filepath.Glob(filepath.Join("testdata", "golden", name+".v*.json"))
		require.NoError(t, err)
		require.NotEmpty(t, files, "run with -update to add the first case of %s", name)
		src, err := Source(name)
		require.NoError(t, err)
		reader := avro.MustParse(src)
		for _, f := range files {
			t.Run(filepath.Base(f), func(t *testing.T) {
				b, err := os.ReadFile(f)
				require.NoError(t, err)
				var c goldenCase
				require.NoError(t, json.Unmarshal(b, &c))
				writer, err := avro.Parse(string(c.Schema))
				require.NoError(t, err)
				require.NoError(t, avro.CheckCompatibility(writer, reader), "today's reader reads it")
				require.NoError(t, avro.CheckCompatibility(reader, writer), "an old reader reads today's records")
				both, err := avro.Resolve(writer, reader)
				require.NoError(t, err)
				data, err := hex.DecodeString(c.Hex)
				require.NoError(t, err)
				got := reflect.New(typ)
				rest, err := both.Decode(data, got.Interface())
				require.NoError(t, err)
				require.Empty(t, rest)
				asJSON, err := json.Marshal(got.Interface())
				require.NoError(t, err)
				var have, want map[string]any
				require.NoError(t, json.Unmarshal(asJSON, &have))
				require.NoError(t, json.Unmarshal(c.Want, &want))
				for k, v := range want { // later schemas may add fields
					require.Equal(t, v, have[k], k)
				}
			})
		}
	}
}

func writeGolden(t *testing.T) {
	t.Helper()
	for topic, typ := range recordTypes {
		name, _ := schemaOf(topic)
		src, err := Source(name)
		require.NoError(t, err)
		v := fixed(typ)
		data, err := avro.MustParse(src).Encode(v.Addr().Interface())
		require.NoError(t, err)
		want, err := json.Marshal(v.Interface())
		require.NoError(t, err)
		b, err := json.MarshalIndent(goldenCase{Schema: json.RawMessage(src), Hex: hex.EncodeToString(data), Want: want}, "", "  ")
		require.NoError(t, err)
		path := filepath.Join("testdata", "golden", name+".v1.json")
		if _, err := os.Stat(path); err == nil {
			continue
		}
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, append(b, '\n'), 0o644))
	}
}

// fixed fills a record with a value that follows from each field's name.
func fixed(typ reflect.Type) reflect.Value {
	v := reflect.New(typ).Elem()
	for i := range typ.NumField() {
		v.Field(i).Set(fixedField(typ.Field(i).Name, typ.Field(i).Type))
	}
	return v
}

func fixedField(name string, typ reflect.Type) reflect.Value {
	id := uuid.NewSHA1(uuid.NameSpaceURL, []byte(name))
	switch typ {
	case reflect.TypeFor[uuid.UUID]():
		return reflect.ValueOf(id)
	case reflect.TypeFor[time.Time]():
		return reflect.ValueOf(time.Date(2026, 11, 29, 18, 0, len(name), 123456000, time.UTC))
	case reflect.TypeFor[[]byte]():
		return reflect.ValueOf([]byte(name))
	case reflect.TypeFor[[]uuid.UUID]():
		return reflect.ValueOf([]uuid.UUID{id})
	}
	switch typ.Kind() {
	case reflect.Pointer:
		p := reflect.New(typ.Elem())
		p.Elem().Set(fixedField(name, typ.Elem()))
		return p
	case reflect.Bool:
		return reflect.ValueOf(true)
	case reflect.Int32:
		return reflect.ValueOf(int32(-len(name)))
	case reflect.Int64:
		return reflect.ValueOf(int64(len(name)) << 33)
	}
	return reflect.ValueOf(strings.ToLower(name) + " ñ 🙂")
}
