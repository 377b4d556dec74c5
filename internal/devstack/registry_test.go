package devstack

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/sr"
)

// serve runs a registry on a journal in dir and returns a client of it.
func serve(t *testing.T, path string) (*sr.Client, *httptest.Server, *registry) {
	t.Helper()
	reg, err := openRegistry(path, true, func(err error) { t.Errorf("fatal: %v", err) })
	require.NoError(t, err)
	server := httptest.NewServer(reg)
	t.Cleanup(server.Close)
	t.Cleanup(func() { _ = reg.close() })
	client, err := sr.NewClient(sr.URLs(server.URL))
	require.NoError(t, err)
	return client, server, reg
}

func record(fields string) sr.Schema {
	return sr.Schema{Schema: `{"type":"record","name":"R","namespace":"carril.test","fields":[` + fields + `]}`}
}

const (
	idField      = `{"name":"id","type":"string"}`
	noteField    = `,{"name":"note","type":["null","string"],"default":null}`
	noteRequired = `,{"name":"note","type":"string"}`
)

func TestRegistryCompatibility(t *testing.T) {
	t.Parallel()
	enum := func(symbols string) sr.Schema {
		return record(idField + `,{"name":"kind","type":{"type":"enum","name":"K","symbols":[` + symbols + `]}}`)
	}
	for name, c := range map[string]struct {
		before, after sr.Schema
		accepted      bool
	}{
		"AcceptsAnAddedFieldWithDefault":         {record(idField), record(idField + noteField), true},
		"RefusesAnAddedFieldWithoutDefault":      {record(idField), record(idField + noteRequired), false},
		"AcceptsTheRemovalOfAFieldWithDefault":   {record(idField + noteField), record(idField), true},
		"RefusesTheRemovalOfAFieldWithNoDefault": {record(idField + noteRequired), record(idField), false},
		"RefusesAChangedType":                    {record(idField), record(`{"name":"id","type":"long"}`), false},
		"RefusesAPromotionWhichIsOneWay":         {record(`{"name":"n","type":"int"}`), record(`{"name":"n","type":"long"}`), false},
		"RefusesARenamedField":                   {record(idField), record(`{"name":"ident","type":"string"}`), false},
		"RefusesAnAddedEnumSymbol":               {enum(`"A"`), enum(`"A","B"`), false},
		"AcceptsAChangedDocumentation":           {record(idField), record(`{"name":"id","type":"string","doc":"d"}`), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, _, _ := serve(t, filepath.Join(t.TempDir(), "journal"))
			_, err := client.CreateSchema(t.Context(), "s", c.before)
			require.NoError(t, err)
			verdict, err := client.CheckCompatibility(t.Context(), "s", -1, c.after)
			require.NoError(t, err)
			require.Equal(t, c.accepted, verdict.Is)
			_, err = client.CreateSchema(t.Context(), "s", c.after)
			if c.accepted {
				require.NoError(t, err)
				return
			}
			var refused *sr.ResponseError
			require.ErrorAs(t, err, &refused)
			require.Equal(t, http.StatusConflict, refused.StatusCode)
		})
	}

	t.Run("HoldsAgainstEveryVersionNotTheLastAlone", func(t *testing.T) {
		t.Parallel()
		client, _, _ := serve(t, filepath.Join(t.TempDir(), "journal"))
		ctx := t.Context()
		for _, fields := range []string{idField + noteField, idField} {
			_, err := client.CreateSchema(ctx, "s", record(fields))
			require.NoError(t, err)
		}
		// Against the last version this is an added field with a default.
		back := record(idField + `,{"name":"note","type":"long","default":0}`)
		_, err := client.CreateSchema(ctx, "s", back)
		require.ErrorContains(t, err, "incompatible")
		require.NoError(t, client.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatFull}, "s")[0].Err)
		_, err = client.CreateSchema(ctx, "s", back)
		require.NoError(t, err)
	})

	t.Run("AllowsAnythingUnderNone", func(t *testing.T) {
		t.Parallel()
		client, _, _ := serve(t, filepath.Join(t.TempDir(), "journal"))
		require.NoError(t, client.SetCompatibility(t.Context(), sr.SetCompatibility{Level: sr.CompatNone}, "s")[0].Err)
		for _, s := range []sr.Schema{record(idField), record(`{"name":"id","type":"long"}`)} {
			_, err := client.CreateSchema(t.Context(), "s", s)
			require.NoError(t, err)
		}
	})

	t.Run("RefusesWhatIsNoAvro", func(t *testing.T) {
		t.Parallel()
		client, _, _ := serve(t, filepath.Join(t.TempDir(), "journal"))
		_, err := client.CreateSchema(t.Context(), "s", sr.Schema{Schema: `{"type":"nonsense"}`})
		var refused *sr.ResponseError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, http.StatusUnprocessableEntity, refused.StatusCode)
	})

	t.Run("FollowsReferences", func(t *testing.T) {
		t.Parallel()
		client, _, _ := serve(t, filepath.Join(t.TempDir(), "journal"))
		_, err := client.CreateSchema(t.Context(), "r", record(idField))
		require.NoError(t, err)
		outer := sr.Schema{
			Schema:     `{"type":"record","name":"Outer","fields":[{"name":"r","type":"carril.test.R"}]}`,
			References: []sr.SchemaReference{{Name: "carril.test.R", Subject: "r", Version: 1}},
		}
		_, err = client.CreateSchema(t.Context(), "outer", outer)
		require.NoError(t, err)
		outer.References = nil
		_, err = client.CreateSchema(t.Context(), "outer2", outer)
		require.Error(t, err)
	})
}

func TestRegistryJournal(t *testing.T) {
	t.Parallel()

	t.Run("GivesTheSameIDsAfterARestart", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "journal")
		client, server, reg := serve(t, path)
		ids := map[string]int{}
		for i := range 5 {
			subject := fmt.Sprintf("topic/%d-value", i)
			s, err := client.CreateSchema(t.Context(), subject, record(fmt.Sprintf(`{"name":"f%d","type":"string"}`, i)))
			require.NoError(t, err)
			ids[subject] = s.ID
		}
		_, err := client.DeleteSubject(t.Context(), "topic/2-value", sr.SoftDelete)
		require.NoError(t, err)
		server.Close()
		require.NoError(t, reg.close())

		client, _, _ = serve(t, path)
		for subject, id := range ids {
			versions, err := client.SubjectVersions(t.Context(), subject)
			if subject == "topic/2-value" {
				require.Error(t, err)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, []int{1}, versions)
			s, err := client.SchemaByVersion(t.Context(), subject, 1)
			require.NoError(t, err)
			require.Equal(t, id, s.ID)
		}
	})

	t.Run("DoesNotGrowWhenASchemaIsRegisteredAgain", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "journal")
		client, _, _ := serve(t, path)
		for range 3 {
			s, err := client.CreateSchema(t.Context(), "s", record(idField))
			require.NoError(t, err)
			require.Equal(t, 1, s.ID)
		}
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, 1, bytes.Count(b, []byte{'\n'}))
	})

	t.Run("DropsAnUnfinishedLastLine", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "journal")
		client, server, reg := serve(t, path)
		_, err := client.CreateSchema(t.Context(), "s", record(idField))
		require.NoError(t, err)
		server.Close()
		require.NoError(t, reg.close())
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = f.WriteString(`{"method":"POST","uri":"/subj`)
		require.NoError(t, err)
		require.NoError(t, f.Close())

		client, server, reg = serve(t, path)
		_, err = client.CreateSchema(t.Context(), "s", record(idField+noteField))
		require.NoError(t, err)
		server.Close()
		require.NoError(t, reg.close())
		client, _, _ = serve(t, path)
		versions, err := client.SubjectVersions(t.Context(), "s")
		require.NoError(t, err)
		require.Equal(t, []int{1, 2}, versions)
	})

	t.Run("RefusesToOpenAJournalWithABrokenLineInside", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "journal")
		require.NoError(t, os.WriteFile(path, []byte("{broken\n{}\n"), 0o600))
		_, err := openRegistry(path, true, nil)
		require.ErrorContains(t, err, "line 1")
	})

	t.Run("IsFatalWhenAChangeCannotBeWritten", func(t *testing.T) {
		t.Parallel()
		var fatal error
		reg, err := openRegistry(filepath.Join(t.TempDir(), "journal"), true, func(err error) { fatal = err })
		require.NoError(t, err)
		require.NoError(t, reg.close())
		rec := httptest.NewRecorder()
		reg.ServeHTTP(rec, httptest.NewRequest(http.MethodPut, "/config/s", bytes.NewBufferString(`{"compatibility":"NONE"}`)))
		require.Equal(t, http.StatusInternalServerError, rec.Code)
		require.ErrorContains(t, fatal, "journal")
	})
}

func TestRegistryToleratesUnknownFields(t *testing.T) {
	t.Parallel()
	_, server, _ := serve(t, filepath.Join(t.TempDir(), "journal"))
	body := bytes.NewBufferString(`{"schema":"{\"type\":\"string\"}","schemaType":"AVRO","metadata":null,"ruleSet":null,"schemaTags":[]}`)
	resp, err := http.Post(server.URL+"/subjects/s/versions?normalize=false", "application/json", body)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusOK, resp.StatusCode)
}
