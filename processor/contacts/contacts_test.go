package contacts_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/processor/contacts"
	"github.com/softcrum/carril/processor/eventlog"
	"github.com/softcrum/carril/processor/identity"
	"github.com/softcrum/carril/processor/stagetest"
	"github.com/softcrum/carril/schemas"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// bench is a tenant's people and the desk that joins them.
type bench struct {
	*stagetest.Bench
	desk contacts.Desk
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{Bench: stagetest.New(t)}
	lanes, err := eventlog.OpenContactLanes(t.Context(), b.Side, b.Codec, nil)
	require.NoError(t, err)
	b.desk = contacts.Desk{Pool: b.Side, Lanes: lanes}
	return b
}

// identify brings a person into being, as the append does, at a time of the traits.
func (b *bench) identify(at time.Time, traits string, identifiers ...string) uuid.UUID {
	b.T.Helper()
	out, err := b.resolve(at, traits, identifiers...)
	require.NoError(b.T, err)
	return out.Contacts[0]
}

func (b *bench) resolve(at time.Time, traits string, identifiers ...string) (out *identity.Outcome, err error) {
	m := map[string]string{}
	for i := 0; i < len(identifiers); i += 2 {
		m[identifiers[i]] = identifiers[i+1]
	}
	raw, err := json.Marshal(m)
	require.NoError(b.T, err)
	err = pgx.BeginFunc(context.Background(), b.Side, func(tx pgx.Tx) error {
		out, err = identity.Resolve(context.Background(), tx, []identity.Input{{TenantID: b.Tenant, CellID: "cell-1", EventID: ids.New(), CorrelationID: "c",
			Identifiers: string(raw), Traits: traits, OccurredAt: at, ReceivedAt: time.Now()}})
		return err
	})
	return out, err
}

func (b *bench) byHand(from, into uuid.UUID) identity.ByHand {
	return identity.ByHand{TenantID: b.Tenant, From: from, Into: into, By: "op", Why: "ticket 7"}
}

// shown is a contact as merges left it.
type shown struct {
	root        uuid.UUID
	family      []uuid.UUID // root included
	identifiers []string
	traits      string
}

func (b *bench) show(id uuid.UUID) (s shown) {
	b.T.Helper()
	ctx, db := context.Background(), processordb.New(b.Side)
	at, err := db.ResolveMerges(ctx, processordb.ResolveMergesParams{Tenants: []uuid.UUID{b.Tenant}, Contacts: []uuid.UUID{id}})
	require.NoError(b.T, err)
	s.root = at[0].At
	s.family, err = db.Family(ctx, processordb.FamilyParams{ContactID: s.root, TenantID: b.Tenant})
	require.NoError(b.T, err)
	require.NoError(b.T, b.Side.QueryRow(ctx, `SELECT traits::text, ARRAY(SELECT value FROM core.contact_identifiers i WHERE i.contact_id = c.contact_id) FROM core.contacts c
		WHERE c.contact_id = $1`, s.root).Scan(&s.traits, &s.identifiers))
	return s
}

func requireCode(t *testing.T, code string, err error) {
	t.Helper()
	var r *identity.Refusal
	require.ErrorAs(t, err, &r)
	require.Equal(t, code, r.Code)
}

func TestMerge(t *testing.T) {
	at := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

	t.Run("MakesOneOfTwoAndCanBeUndone", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		ana := b.identify(at, `{"plan":"pro","city":"Lima"}`, "email", "ana@example.com")
		old := b.identify(at.Add(time.Hour), `{"plan":"free","age":3}`, "phone", "+584125550101", "anonymous_id", "d-1")
		require.NoError(t, b.desk.Merge(t.Context(), b.byHand(old, ana)))
		require.ElementsMatch(t, []string{"d-1", "ana@example.com", "+584125550101"}, b.show(ana).identifiers)
		require.JSONEq(t, `{"plan":"free","city":"Lima","age":3}`, b.show(ana).traits, "the newer wins a trait")
		require.Equal(t, ana, b.show(old).root)
		require.ElementsMatch(t, []uuid.UUID{ana, old}, b.show(ana).family)
		require.Equal(t, ana, b.identify(at, `{}`, "phone", "+584125550101"))
		b.identify(at, `{}`, "phone", "+584125550101", "anonymous_id", "d-2") // comes after the merge
		require.Equal(t, 1, b.Count(`SELECT count(*) FROM core.contact_merges WHERE merged_by = 'op' AND reason = 'ticket 7' AND undone_at IS NULL`))

		require.NoError(t, b.desk.Unmerge(t.Context(), b.byHand(old, uuid.Nil)))
		require.ElementsMatch(t, []string{"+584125550101", "d-1"}, b.show(old).identifiers)
		require.ElementsMatch(t, []string{"ana@example.com", "d-2"}, b.show(ana).identifiers, "what came after the merge stays")
		require.JSONEq(t, `{"plan":"free","age":3}`, b.show(old).traits)
		require.JSONEq(t, `{"city":"Lima"}`, b.show(ana).traits)
		require.Equal(t, old, b.show(old).root)
		require.Equal(t, old, b.identify(at, `{}`, "phone", "+584125550101"))
		require.Equal(t, 1, b.Count(`SELECT count(*) FROM core.contact_merges WHERE undone_by = 'op' AND undone_reason = 'ticket 7' AND undone_at IS NOT NULL`))
		requireCode(t, identity.CodeNotMerged, b.desk.Unmerge(t.Context(), b.byHand(old, uuid.Nil)))
		require.NoError(t, b.desk.Merge(t.Context(), b.byHand(old, ana)), "and may be made again")
	})

	t.Run("TellsMirrors", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		ana, old := b.identify(at, `{"a":1}`, "email", "ana@example.com"), b.identify(at, `{"b":2}`, "email", "old@example.com")
		require.NoError(t, b.desk.Merge(t.Context(), b.byHand(old, ana)))
		require.NoError(t, b.desk.Unmerge(t.Context(), b.byHand(old, uuid.Nil)))
		rows, err := b.Side.Query(t.Context(), `SELECT value FROM core.outbox WHERE written_at > '-infinity' AND topic = 'core.contact' ORDER BY lane_seq`)
		require.NoError(t, err)
		raw, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
		require.NoError(t, err)
		var got []string
		for _, v := range raw {
			var c schemas.ContactChanged
			require.NoError(t, b.Codec.Decode(t.Context(), schemas.TopicContact, v, &c))
			require.Nil(t, c.CauseEventID)
			got = append(got, fmt.Sprint(c.Change, " ", map[uuid.UUID]string{ana: "ana", old: "old"}[c.ContactID], " ", c.Traits, " ", c.IntoContactID != nil))
		}
		require.Equal(t, []string{`merged old {} true`, `identified ana {"a":1,"b":2} false`, `unmerged old {"b": 2} false`, `identified ana {"a":1} false`}, got)
	})

	t.Run("IsRefusedWhereItMustBe", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		one, two := b.identify(at, `{}`, "external_id", "u-1"), b.identify(at, `{}`, "external_id", "u-2")
		requireCode(t, identity.CodeTwoExternalIDs, b.desk.Merge(t.Context(), b.byHand(one, two)))
		requireCode(t, identity.CodeSame, b.desk.Merge(t.Context(), b.byHand(one, one)))
		requireCode(t, identity.CodeNotFound, b.desk.Merge(t.Context(), b.byHand(one, ids.New())))
		h := b.byHand(one, two)
		h.TenantID = b.AddTenant("other", "starter")
		requireCode(t, identity.CodeNotFound, b.desk.Merge(t.Context(), h))
		h = b.byHand(one, two)
		h.Why = ""
		requireCode(t, "missing_actor", b.desk.Merge(t.Context(), h))
		gone := b.identify(at, `{}`, "email", "gone@example.com")
		b.Exec(`UPDATE core.contacts SET erased_at = now() WHERE contact_id = $1`, gone)
		requireCode(t, identity.CodeErased, b.desk.Merge(t.Context(), b.byHand(gone, one)))
		require.Zero(t, b.Count(`SELECT count(*) FROM core.contact_merges`))

		h = b.byHand(one, two)
		h.Force = true
		require.NoError(t, b.desk.Merge(t.Context(), h), "an operator knows better")
		require.Equal(t, two, b.identify(at, `{}`, "external_id", "u-1"))
		require.Equal(t, two, b.identify(at, `{}`, "external_id", "u-1", "email", "ana@example.com"), "and identity goes by it")
	})

	t.Run("ChainsAreFollowedAndPartedInTheMiddle", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		var people []uuid.UUID
		for i := range 5 {
			people = append(people, b.identify(at, `{}`, "email", fmt.Sprintf("p%d@example.com", i)))
		}
		for i := range 4 {
			require.NoError(t, b.desk.Merge(t.Context(), b.byHand(people[i], people[i+1])))
		}
		require.Equal(t, people[4], b.show(people[0]).root)
		require.Len(t, b.show(people[4]).identifiers, 5)
		requireCode(t, identity.CodeSame, b.desk.Merge(t.Context(), b.byHand(people[0], people[3])))
		require.NoError(t, b.desk.Unmerge(t.Context(), b.byHand(people[2], uuid.Nil)))
		require.ElementsMatch(t, []string{"p0@example.com", "p1@example.com", "p2@example.com"}, b.show(people[2]).identifiers)
		require.ElementsMatch(t, []string{"p3@example.com", "p4@example.com"}, b.show(people[4]).identifiers)
		require.Equal(t, people[2], b.show(people[0]).root)
	})

	t.Run("ARingEnds", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		x, y := b.identify(at, `{}`, "email", "x@example.com"), b.identify(at, `{}`, "email", "y@example.com")
		b.Exec(`INSERT INTO core.contact_merges (tenant_id, from_contact, into_contact) VALUES ($1, $2, $3), ($1, $3, $2)`, b.Tenant, x, y)
		require.Len(t, b.show(x).family, 2)
	})

	t.Run("TwoAtOnceAndAnAppendBetween", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		ana, bo := b.identify(at, `{}`, "email", "ana@example.com"), b.identify(at, `{}`, "email", "bo@example.com")
		done := make(chan error, 3)
		go func() { done <- b.desk.Merge(context.Background(), b.byHand(ana, bo)) }()
		go func() { done <- b.desk.Merge(context.Background(), b.byHand(bo, ana)) }()
		go func() {
			_, err := b.resolve(at, `{"a":1}`, "email", "ana@example.com", "email2", "x")
			done <- err
		}()
		for range 3 {
			if err := <-done; err != nil { // one of them may be told to try again; none may leave a ring
				t.Log(err)
			}
		}
		require.Equal(t, 1, b.Count(`SELECT count(*) FROM core.contact_merges WHERE undone_at IS NULL`))
	})
}

func TestFind(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ana := b.identify(time.Now(), `{}`, "email", "ana@example.com", "crm", "7-A")
	for kind, value := range map[string]string{"email": " Ana@EXAMPLE.com", "crm": "7-A"} {
		got, err := b.desk.Find(t.Context(), b.Tenant, kind, value)
		require.NoError(t, err)
		require.Equal(t, ana, got)
	}
	_, err := b.desk.Find(t.Context(), b.Tenant, "email", "nobody@example.com")
	requireCode(t, identity.CodeNotFound, err)
	_, err = b.desk.Find(t.Context(), b.Tenant, "email", "null")
	requireCode(t, "invalid_identifier", err)
}

func TestIdentifiersAreCapped(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	at := time.Now()
	ana := b.identify(at, `{}`, "email", "ana@example.com")
	b.Exec(`INSERT INTO core.contact_identifiers (tenant_id, kind, value, contact_id) SELECT $1, 'anonymous_id', 'd-' || n, $2 FROM generate_series(2, $3::int) n`, b.Tenant, ana, identity.MaxIdentifiers)
	out, err := b.resolve(at, ``, "email", "ana@example.com", "anonymous_id", "one-more", "phone", "+584125550101")
	require.NoError(t, err)
	require.Equal(t, ana, out.Contacts[0], "the event is theirs")
	require.Len(t, out.Warnings, 1)
	require.Equal(t, "identifiers_capped", out.Warnings[0].Kind)
	require.Equal(t, map[string]string{"refused": "2", "limit": "200"}, out.Warnings[0].Detail)
	require.Equal(t, ana, b.identify(at, ``, "email", "ana@example.com", "external_id", "u-1"), "the external_id is never refused")
	require.NotEqual(t, ana, b.identify(at, ``, "anonymous_id", "one-more"))
}

// TestErasureAndAppendMeet holds an append between its reads and its writes while
// the contact is erased: what it attaches must not stay on the erased contact.
func TestErasureAndAppendMeet(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ana := b.identify(time.Now(), `{}`, "email", "ana@example.com")
	tx, err := b.Side.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT FROM core.contacts WHERE contact_id = $1 FOR UPDATE`, ana)
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `DELETE FROM core.contact_identifiers WHERE contact_id = $1`, ana)
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `UPDATE core.contacts SET erased_at = now() WHERE contact_id = $1`, ana)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := b.resolve(time.Now(), ``, "email", "ana@example.com", "anonymous_id", "d-1")
		done <- err
	}()
	b.Eventually("the append waits for the erasure", func() bool {
		return b.Count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
	})
	require.NoError(t, tx.Commit(t.Context()))
	require.ErrorContains(t, <-done, "erased while it was changed", "it is tried again on fresh reads")
	require.Zero(t, b.Count(`SELECT count(*) FROM core.contact_identifiers WHERE contact_id = $1`, ana))
}
