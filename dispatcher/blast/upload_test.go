package blast

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/ids"
)

// file writes a CSV of the contacts from one to another.
func file(from, to int) string {
	var b strings.Builder
	b.WriteString("external_id;name\n")
	for i := from; i <= to; i++ {
		fmt.Fprintf(&b, "c-%d;Name %d\n", i, i)
	}
	return b.String()
}

// until breaks a body off after some bytes.
func until(body string, n int) io.Reader {
	return io.MultiReader(strings.NewReader(body[:n]), broken{})
}

func TestUpload(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.contacts(2_500)
	ctx := context.Background()
	csv := File{Format: CSV}

	t.Run("TakesEachKnownAddressOnce", func(t *testing.T) {
		t.Parallel()
		b := d.draft(Audience{Type: FromUpload})
		merged, gone := d.contact(2_400), d.contact(2_401)
		d.exec(`INSERT INTO core.contact_merges (tenant_id, from_contact, into_contact) VALUES ($1, $2, $3)`, d.tenant, merged, d.contact(2_402))
		d.exec(`UPDATE core.contacts SET erased_at = now() WHERE contact_id = $1`, gone)
		d.exec(`DELETE FROM core.contact_identifiers WHERE kind = 'email' AND contact_id = $1`, d.contact(2_403))
		body := "external_id,contact_id,email,name\n" +
			"c-1,,,Ana\n" + // taken
			",,P1@Example.com,Ana again\n" + // a duplicate, in another spelling
			"," + d.contact(2).String() + ",,Leo\n" + // taken
			",,p3@example.com,Eva\n" + // taken
			",,nobody@example.com,x\n" +
			"c-9999999,,,x\n" +
			"," + uuid.NewString() + ",,x\n" +
			",nonsense,,x\n" +
			",,not an address,x\n" +
			",,,x\n" +
			"c-5,,p6@example.com,x\n" + // another's address beside an identifier
			"c-7,,p7@example.com,Own\n" + // taken
			"," + merged.String() + ",,Merged\n" + // whom it became
			"," + gone.String() + ",,x\n" +
			"c-2403,,,x\n"
		u, err := d.Upload(ctx, d.tenant, b.ID, ids.New(), csv, strings.NewReader(body), nil)
		require.NoError(t, err)
		require.Equal(t, UploadDone, u.State)
		require.Equal(t, [4]int64{15, 5, 1, 9}, [4]int64{u.RowsRead, u.Taken, u.Duplicates, u.Refused})
		require.Equal(t, map[string]int64{UnknownContact: 4, BadContactID: 1, BadAddress: 1, NoIdentifier: 1, ForeignAddress: 1, NoAddress: 1}, u.Reasons)
		_, bad, err := d.Uploaded(ctx, d.tenant, b.ID, u.UploadID, 0, 100)
		require.NoError(t, err)
		require.Equal(t, []BadRow{{6, "address", UnknownContact}, {7, "external_id", UnknownContact}, {8, "contact_id", UnknownContact}, {9, "contact_id", BadContactID},
			{10, "address", BadAddress}, {11, "", NoIdentifier}, {12, "address", ForeignAddress}, {15, "contact_id", UnknownContact}, {16, "", NoAddress}}, bad)
		require.Equal(t, int64(5), d.exact(b.ID).Recipients)
		var raw string
		require.NoError(t, d.pool.QueryRow(ctx, `SELECT string_agg(address || ' ' || (variables ->> 'name'), ',' ORDER BY position) FROM messaging.blast_recipients WHERE blast_id = $1`, b.ID).Scan(&raw))
		require.Equal(t, "p1@example.com Ana,p2@example.com Leo,p3@example.com Eva,p7@example.com Own,p2402@example.com Merged", raw)
	})

	// JSON that the database has no form for is a bad row, not an end of the file.
	t.Run("TakesWhatTheDatabaseCanKeepAndNamesTheRest", func(t *testing.T) {
		t.Parallel()
		b := d.draft(Audience{Type: FromUpload})
		body := ""
		for i, v := range []string{`"\ud83d\ude00"`, strings.Repeat("9", 64), "-1.7e308", "0." + strings.Repeat("0", 399) + "1", "1e-400", strings.Repeat("[", 31) + strings.Repeat("]", 31),
			`"\ud800"`, `"\u0000"`, "1e999999", "1e-999999", "1e-401", strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000)} {
			body += fmt.Sprintf(`{"external_id":"c-%d","v":%s}`+"\n", i+1, v)
		}
		u, err := d.Upload(ctx, d.tenant, b.ID, ids.New(), File{Format: NDJSON}, strings.NewReader(body), nil)
		require.NoError(t, err)
		require.Equal(t, UploadDone, u.State)
		require.Equal(t, map[string]int64{BadCharacter: 2, BadNumber: 3, TooDeep: 1}, u.Reasons)
		require.Equal(t, int64(6), u.Taken)
	})

	t.Run("GoesOnBehindWhatWasTakenWhereverItBreaksOff", func(t *testing.T) {
		t.Parallel()
		b := d.draft(Audience{Type: FromUpload})
		body, upload := file(1, 2_300), ids.New()
		var taken []int64
		for _, n := range []int{len(body) / 10, len(body) / 2, len(body) - 3} {
			_, err := d.Upload(ctx, d.tenant, b.ID, upload, csv, until(body, n), nil)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			u, _, err := d.Uploaded(ctx, d.tenant, b.ID, upload, 0, 1)
			require.NoError(t, err)
			require.Equal(t, UploadOpen, u.State)
			taken = append(taken, u.Taken)
			d.exact(b.ID)
		}
		require.IsIncreasing(t, taken)
		_, err := d.Start(ctx, d.tenant, b.ID, Start{})
		require.Equal(t, "upload_open", code(err))
		u, err := d.Upload(ctx, d.tenant, b.ID, upload, csv, strings.NewReader(body), nil)
		require.NoError(t, err)
		require.Equal(t, [3]int64{2_300, 2_300, 0}, [3]int64{u.RowsRead, u.Taken, u.Duplicates}, "only the rest was applied")
		again, err := d.Upload(ctx, d.tenant, b.ID, upload, csv, strings.NewReader(body), nil)
		require.NoError(t, err)
		require.Equal(t, u, again, "an upload that is done says what it was")
		require.Equal(t, int64(2_300), d.exact(b.ID).Recipients)
	})

	// A worker killed between two chunks, or in one: the transaction is the unit.
	t.Run("IsKilledInTheMiddle", func(t *testing.T) {
		t.Parallel()
		b := d.draft(Audience{Type: FromUpload})
		body, upload := file(1, 2_300), ids.New()
		kctx, kill := context.WithCancel(ctx)
		_, err := d.Upload(kctx, d.tenant, b.ID, upload, csv, strings.NewReader(body), func(Upload) { kill() })
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, int64(1_000), d.exact(b.ID).Recipients)
		u, err := d.Upload(ctx, d.tenant, b.ID, upload, csv, strings.NewReader(body), nil)
		require.NoError(t, err)
		require.Equal(t, int64(2_300), u.Taken)
		require.Equal(t, int64(2_300), d.exact(b.ID).Recipients)
	})

	t.Run("RefusesAnotherFileUnderItsId", func(t *testing.T) {
		t.Parallel()
		b := d.draft(Audience{Type: FromUpload})
		body, upload := file(1, 1_500), ids.New()
		_, err := d.Upload(ctx, d.tenant, b.ID, upload, csv, until(body, len(body)-5), nil)
		require.Error(t, err)
		_, err = d.Upload(ctx, d.tenant, b.ID, upload, csv, strings.NewReader(file(2, 1_600)), nil)
		require.Equal(t, "upload_differs", code(err))
		_, err = d.Upload(ctx, d.tenant, b.ID, upload, csv, strings.NewReader(file(1, 10)), nil)
		require.Equal(t, "upload_differs", code(err))
		d.exact(b.ID)
	})

	// Whoever mends a file and sends it under the old id must not read the old
	// counts as the new file's.
	t.Run("RefusesAnotherFileOnceItsUploadHasEnded", func(t *testing.T) {
		t.Parallel()
		b := d.draft(Audience{Type: FromUpload})
		lines := File{Format: NDJSON}
		for name, c := range map[string]struct {
			first  File
			body   string
			second File
			other  string
		}{
			"Others":         {csv, file(10, 20), csv, file(11, 21)},
			"OneMore":        {csv, file(10, 20), csv, file(10, 21)},
			"OneLess":        {csv, file(10, 20), csv, file(10, 19)},
			"Another'sName":  {csv, file(10, 20), csv, strings.Replace(file(10, 20), "Name 15", "Name 51", 1)},
			"OtherTitles":    {csv, file(10, 20), csv, strings.Replace(file(10, 20), "name", "nombre", 1)},
			"OtherColumns":   {csv, file(10, 20), File{Format: CSV, Columns: map[string]string{"name": ""}}, file(10, 20)},
			"OtherFields":    {lines, `{"external_id":"c-1","n":1}`, File{Format: NDJSON, Columns: map[string]string{"n": "m"}}, `{"external_id":"c-1","n":1}`},
			"NoRowsThenSome": {csv, file(1, 0), csv, file(1, 1)},
			"Mended":         {csv, file(10, 20) + "c-21;Le\xf3n\n", csv, file(10, 21)},
			"MendedHeader":   {csv, "nombre\nAna\n", csv, file(10, 21)},
			"WorseThanIt":    {csv, file(10, 20) + "c-21;Le\xf3n\n", csv, file(10, 15) + "c-16;Le\xf3n\n"},
			"CutShort":       {csv, file(10, 20) + "c-21;Le\xf3n\n", csv, file(10, 20)},
			"NoFileAnyMore":  {csv, file(10, 20), csv, ""},
		} {
			upload := ids.New()
			was, err := d.Upload(ctx, d.tenant, b.ID, upload, c.first, strings.NewReader(c.body), nil)
			require.NoError(t, err, name)
			_, err = d.Upload(ctx, d.tenant, b.ID, upload, c.second, strings.NewReader(c.other), nil)
			require.Equal(t, "upload_differs", code(err), name)
			_, err = d.Upload(ctx, d.tenant, b.ID, upload, c.first, until(c.body, 3), nil)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF, "%s: a connection that breaks off says nothing of the file", name)
			again, err := d.Upload(ctx, d.tenant, b.ID, upload, c.first, strings.NewReader(c.body), nil)
			require.NoError(t, err, name)
			require.Equal(t, was, again, name)
		}
		n := d.exact(b.ID).Recipients
		_, err := d.Start(ctx, d.tenant, b.ID, Start{})
		require.NoError(t, err)
		upload := ids.New()
		_, err = d.Upload(ctx, d.tenant, b.ID, upload, csv, strings.NewReader(file(1, 9)), nil)
		require.Equal(t, "not_a_draft", code(err))
		require.Equal(t, n, d.exact(b.ID).Recipients)
	})

	// The connection is gone for the client, but its server has not noticed yet.
	t.Run("LetsTheNewestConnectionWin", func(t *testing.T) {
		t.Parallel()
		b := d.draft(Audience{Type: FromUpload})
		body, upload := file(1, 2_300), ids.New()
		taken := false
		_, err := d.Upload(ctx, d.tenant, b.ID, upload, csv, strings.NewReader(body), func(Upload) {
			if !taken {
				taken = true
				_, err := d.Upload(ctx, d.tenant, b.ID, upload, csv, until(body, len(body)-100), nil) // which breaks off too
				require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			}
		})
		require.Equal(t, "upload_taken_over", code(err))
		d.exact(b.ID)
		u, err := d.Upload(ctx, d.tenant, b.ID, upload, csv, strings.NewReader(body), nil)
		require.NoError(t, err)
		require.Equal(t, [2]int64{2_300, 0}, [2]int64{u.Taken, u.Duplicates})
		require.Equal(t, int64(2_300), d.exact(b.ID).Recipients)
	})

	t.Run("KeepsWhatStoodBeforeABadRow", func(t *testing.T) {
		t.Parallel()
		b := d.draft(Audience{Type: FromUpload})
		body := file(1, 1_200) + "c-1201;Le\xf3n\n"
		u, err := d.Upload(ctx, d.tenant, b.ID, ids.New(), csv, strings.NewReader(body), nil)
		require.NoError(t, err)
		require.Equal(t, UploadFailed, u.State)
		require.Equal(t, BadEncoding, *u.Error)
		require.Equal(t, int64(1_202), *u.ErrorRow)
		require.Equal(t, int64(1_200), d.exact(b.ID).Recipients)
		_, err = d.Start(ctx, d.tenant, b.ID, Start{})
		require.NoError(t, err, "a file that has failed holds nothing up")
	})

	t.Run("ListsTheFirstThousandBadRows", func(t *testing.T) {
		t.Parallel()
		b := d.draft(Audience{Type: FromUpload})
		u, err := d.Upload(ctx, d.tenant, b.ID, ids.New(), csv, strings.NewReader("email\n"+strings.Repeat("nobody@example.com\n", 2_600)), nil)
		require.NoError(t, err)
		require.Equal(t, int64(2_600), u.Refused)
		require.Equal(t, int64(1_000), d.count(`SELECT count(*) FROM messaging.blast_upload_rows WHERE upload_id = $1`, u.UploadID))
	})

	t.Run("TakesNDJSON", func(t *testing.T) {
		t.Parallel()
		b := d.draft(Audience{Type: FromUpload})
		u, err := d.Upload(ctx, d.tenant, b.ID, ids.New(), File{Format: NDJSON}, strings.NewReader(`{"external_id":"c-1","n":3,"items":[1,2]}`), nil)
		require.NoError(t, err)
		require.Equal(t, int64(1), u.Taken)
		var raw []byte
		require.NoError(t, d.pool.QueryRow(ctx, `SELECT variables FROM messaging.blast_recipients WHERE blast_id = $1`, b.ID).Scan(&raw))
		require.JSONEq(t, `{"n":3,"items":[1,2]}`, string(raw))
	})

	t.Run("IsRefusedOutsideADraft", func(t *testing.T) {
		t.Parallel()
		b := d.draft(Audience{Type: FromContacts})
		_, err := d.Upload(ctx, d.tenant, b.ID, ids.New(), csv, strings.NewReader(file(1, 2)), nil)
		require.Equal(t, "audience_is_contacts", code(err))
		b = d.filled(3)
		_, err = d.Start(ctx, d.tenant, b.ID, Start{})
		require.NoError(t, err)
		_, err = d.Upload(ctx, d.tenant, b.ID, ids.New(), csv, strings.NewReader(file(1, 2)), nil)
		require.Equal(t, "not_a_draft", code(err))
		_, err = d.Upload(ctx, ids.New(), b.ID, ids.New(), csv, strings.NewReader(file(1, 2)), nil)
		require.ErrorIs(t, err, ErrNone)
	})
}

func TestAudienceOfContacts(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ctx := context.Background()
	d.contacts(2_600)
	d.exec(`INSERT INTO messaging.consents (tenant_id, contact_id, channel, granted, source, changed_at) VALUES ($1, $2, 'email', false, 'test', now() + interval '1 second')`, d.tenant, d.contact(2))
	d.exec(`DELETE FROM messaging.consents WHERE contact_id = $1`, d.contact(4))
	d.exec(`INSERT INTO messaging.suppressions (tenant_id, channel, address, reason) VALUES ($1, 'email', 'p6@example.com', 'complaint')`, d.tenant)
	d.exec(`DELETE FROM core.contact_identifiers WHERE kind = 'email' AND contact_id = $1`, d.contact(8))
	d.exec(`UPDATE core.contacts SET erased_at = now() WHERE contact_id = $1`, d.contact(10))
	// The consent of one who was merged into another counts for that one.
	d.exec(`DELETE FROM messaging.consents WHERE contact_id = $1`, d.contact(12))
	d.exec(`INSERT INTO core.contact_merges (tenant_id, from_contact, into_contact) VALUES ($1, $2, $3)`, d.tenant, d.contact(14), d.contact(12))

	b := d.draft(Audience{Type: FromContacts, Traits: json.RawMessage(`{"tier":"gold"}`)})
	dry, err := d.DryRun(ctx, d.tenant, b.ID)
	require.NoError(t, err)
	const gold = 1_300 - 6 // without the one withdrawn, without consent, suppressed, without address, erased, merged
	require.Equal(t, [5]int64{gold, 2, 1, 1, (gold + 99) / 100}, [5]int64{dry.Sendable, dry.WithoutConsent, dry.Suppressed, dry.WithoutAddress, dry.Requests})
	require.True(t, dry.Complete)

	started, err := d.Start(ctx, d.tenant, b.ID, Start{})
	require.NoError(t, err)
	require.Equal(t, Preparing, started.State)
	// Killed in the middle: a chunk's transaction that does not commit leaves nothing.
	more, err := d.Prepare(ctx, "email")
	require.NoError(t, err)
	require.True(t, more)
	half := d.exact(b.ID).Recipients
	require.Positive(t, half)
	dead, cancel := context.WithCancel(ctx)
	cancel()
	_, err = d.Prepare(dead, "email")
	require.ErrorIs(t, err, context.Canceled)
	// Somebody pauses, resumes, and another process goes on.
	_, err = d.Pause(ctx, d.tenant, b.ID)
	require.NoError(t, err)
	more, err = d.Prepare(ctx, "email")
	require.NoError(t, err)
	require.False(t, more)
	require.Equal(t, half, d.exact(b.ID).Recipients)
	resumed, err := d.Resume(ctx, d.tenant, b.ID)
	require.NoError(t, err)
	require.Equal(t, Preparing, resumed.State)
	other := New(Config{}, d.pool)
	for more = true; more; {
		more, err = other.Prepare(ctx, "email")
		require.NoError(t, err)
	}
	got := d.exact(b.ID)
	require.Equal(t, Running, got.State)
	require.Equal(t, int64(gold), got.Recipients)
	var report audienceReport
	require.NoError(t, json.Unmarshal(got.AudienceReport, &report))
	require.Equal(t, audienceReport{Looked: 2_598, Taken: gold, FilteredOut: 1_300, WithoutConsent: 2, WithoutAddress: 1, Suppressed: 1}, report)
	require.Zero(t, d.count(`SELECT count(*) FROM messaging.blast_recipients WHERE blast_id = $1 AND address IN ('p2@example.com', 'p4@example.com', 'p6@example.com', 'p10@example.com', 'p14@example.com')`, b.ID))
	require.Equal(t, int64(1), d.count(`SELECT count(*) FROM messaging.blast_recipients WHERE blast_id = $1 AND address = 'p12@example.com'`, b.ID))
}

func TestAnAudienceOfNobodyIsDone(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ctx := context.Background()
	d.contacts(10)
	b := d.draft(Audience{Type: FromContacts, Traits: json.RawMessage(`{"tier":"platinum"}`)})
	soon := time.Now().Add(time.Hour)
	got, err := d.Start(ctx, d.tenant, b.ID, Start{At: &soon})
	require.NoError(t, err)
	require.Equal(t, Scheduled, got.State)
	n, err := d.Due(ctx, "email")
	require.NoError(t, err)
	require.Zero(t, n, "its time has not come")
	d.exec(`UPDATE messaging.blasts SET start_at = now() WHERE blast_id = $1`, b.ID)
	n, err = d.Due(ctx, "email")
	require.NoError(t, err)
	require.Equal(t, int64(1), n)
	more, err := d.Prepare(ctx, "email")
	require.NoError(t, err)
	require.False(t, more)
	_, err = d.Finish(ctx, "email")
	require.NoError(t, err)
	got = d.exact(b.ID)
	require.Equal(t, "done no_recipients", got.State+" "+*got.StateReason)
	require.NotNil(t, got.FinishedAt)
}

// BenchmarkUpload takes a file of known contacts, by row.
func BenchmarkUpload(b *testing.B) {
	d := newDesk(b)
	n := max(b.N, 1_000)
	d.contacts(n)
	blast := d.draft(Audience{Type: FromUpload})
	body := file(1, n)
	b.ReportAllocs()
	b.ResetTimer()
	u, err := d.Upload(context.Background(), d.tenant, blast.ID, ids.New(), File{Format: CSV}, strings.NewReader(body), nil)
	b.StopTimer()
	require.NoError(b, err)
	require.Equal(b, int64(n), u.Taken)
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "rows/s")
}

// BenchmarkFreeze freezes an audience of contacts, by contact.
func BenchmarkFreeze(b *testing.B) {
	d := newDesk(b)
	n := max(b.N, 1_000)
	d.contacts(n)
	blast := d.draft(Audience{Type: FromContacts})
	_, err := d.Start(context.Background(), d.tenant, blast.ID, Start{})
	require.NoError(b, err)
	b.ResetTimer()
	for more := true; more; {
		more, err = d.Prepare(context.Background(), "email")
		require.NoError(b, err)
	}
	b.StopTimer()
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "contacts/s")
}
