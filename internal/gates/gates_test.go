package gates_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/gates"
	"github.com/softcrum/carril/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestNormalize(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		channel, in, out string
		ok               bool
	}{
		{"email", "Ana@Example.com", "ana@example.com", true},
		{"email", "ana+x@example.com.", "ana+x@example.com", true},
		{"email", "a@exämple.com", "a@xn--exmple-cua.com", true},
		{"email", "a@XN--exmple-cua.com", "a@xn--exmple-cua.com", true},
		{"email", "a@b.c\r\nBcc: x@y.z", "", false},
		{"email", "a@b.c>\r\nDATA", "", false},
		{"email", "Name <a@b.c>", "", false},
		{"email", "a@[127.0.0.1]", "", false},
		{"email", "a@b.c ", "", false},
		{"email", "", "", false},
		{"email", "@example.com", "", false},
		{"email", "a@b@example.com", "", false},
		{"email", "a@localhost", "", false},
		{"email", "a..b@example.com", "", false},
		{"email", "a@127.0.0.1", "", false},
		{"email", "a@1.example.com", "a@1.example.com", true},
		{"email", "a@" + strings.Repeat("b", 63) + ".com", "a@" + strings.Repeat("b", 63) + ".com", true},
		{"email", "a@" + strings.Repeat("b", 64) + ".com", "", false},
		{"email", "a@" + strings.Repeat("b.", 126) + "com", "", false},
		{"sms", "+50688887777", "+50688887777", true},
		{"sms", "88887777", "", false},
		{"sms", "+0506", "", false},
		{"sms", "+506 8888 7777", "", false},
	} {
		t.Run(c.channel+"/"+c.in, func(t *testing.T) {
			t.Parallel()
			out, ok := gates.Normalize(c.channel, c.in)
			require.Equal(t, c.ok, ok)
			if ok {
				require.Equal(t, c.out, out)
				again, _ := gates.Normalize(c.channel, out)
				require.Equal(t, out, again)
			}
		})
	}
}

func TestAsk(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t)
	tenant := newTenant(t, pool)
	exec := func(sql string, args ...any) {
		t.Helper()
		_, err := pool.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	exec(`INSERT INTO messaging.senders (tenant_id, channel, sender, verified) VALUES ($1, 'email', 'Shop <shop@example.com>', true)`, tenant)
	contact := func() uuid.UUID {
		id := uuid.New()
		exec(`INSERT INTO core.contacts (tenant_id, contact_id, cell_id, known) VALUES ($1, $2, 'cell-1', true)`, tenant, id)
		return id
	}
	consent := func(c uuid.UUID, granted bool, at time.Time) {
		exec(`INSERT INTO messaging.consents (tenant_id, contact_id, channel, granted, source, changed_at) VALUES ($1, $2, 'email', $3, 'test', $4)`, tenant, c, granted, at)
	}
	suppress := func(address, why string) {
		exec(`INSERT INTO messaging.suppressions (tenant_id, channel, address, reason) VALUES ($1, 'email', $2, $3)`, tenant, address, why)
	}
	past, future := time.Now().Add(-time.Second), time.Now().Add(time.Hour)
	yes, no, erased, merged, into := contact(), contact(), contact(), contact(), contact()
	consent(yes, false, past.Add(-time.Hour))
	consent(yes, true, past)
	consent(no, true, past.Add(-time.Hour))
	consent(no, false, past)
	consent(into, false, past)
	consent(merged, true, past.Add(-time.Hour))
	exec(`INSERT INTO core.contact_merges (tenant_id, from_contact, into_contact) VALUES ($1, $2, $3)`, tenant, merged, into)
	exec(`UPDATE core.contacts SET erased_at = now() WHERE contact_id = $1`, erased)
	suppress("bounced@example.com", "hard_bounce")
	suppress("angry@example.com", "complaint")
	suppress("gone@example.com", "unsubscribe")
	suppress("a@xn--exmple-cua.com", "manual")
	base := gates.Subject{TenantID: tenant, ContactID: yes, Channel: "email", Category: "transactional", Address: "ana@example.com"}
	with := func(f func(*gates.Subject)) gates.Subject { s := base; f(&s); return s }
	marketing := func(c uuid.UUID) gates.Subject {
		return with(func(s *gates.Subject) { s.Category, s.ContactID = "marketing", c })
	}
	cases := []struct {
		name string
		s    gates.Subject
		want gates.Verdict
	}{
		{"open", base, gates.Verdict{Open: true}},
		{"not yet expired", with(func(s *gates.Subject) { s.ExpiresAt = &future }), gates.Verdict{Open: true}},
		{"expired", with(func(s *gates.Subject) { s.ExpiresAt = &past }), gates.Verdict{Gate: gates.GateExpiry, Reason: gates.Expired}},
		{"no address", with(func(s *gates.Subject) { s.Address = "" }), gates.Verdict{Gate: gates.GateAddress, Reason: gates.AddressMissing}},
		{"header in address", with(func(s *gates.Subject) { s.Address = "a@b.c\r\nBcc: x@y.z" }), gates.Verdict{Gate: gates.GateAddress, Reason: gates.AddressInvalid}},
		{"bounced, other case", with(func(s *gates.Subject) { s.Address = "Bounced@Example.com" }), gates.Verdict{Gate: gates.GateSuppression, Reason: gates.SuppressedHardBounce}},
		{"complained", with(func(s *gates.Subject) { s.Address = "angry@example.com" }), gates.Verdict{Gate: gates.GateSuppression, Reason: gates.SuppressedComplaint}},
		{"suppressed by its other form", with(func(s *gates.Subject) { s.Address = "a@exämple.com" }), gates.Verdict{Gate: gates.GateSuppression, Reason: gates.SuppressedManual}},
		{"unsubscribed, a code", with(func(s *gates.Subject) { s.Address = "gone@example.com" }), gates.Verdict{Open: true}},
		{"unsubscribed, marketing", with(func(s *gates.Subject) { s.Address, s.Category = "gone@example.com", "marketing" }), gates.Verdict{Gate: gates.GateSuppression, Reason: gates.SuppressedUnsubscribe}},
		{"newest consent granted", marketing(yes), gates.Verdict{Open: true}},
		{"newest consent withdrawn", marketing(no), gates.Verdict{Gate: gates.GateConsent, Reason: gates.ConsentWithdrawn}},
		{"no consent", marketing(uuid.New()), gates.Verdict{Gate: gates.GateConsent, Reason: gates.ConsentMissing}},
		{"withdrawn by whom the contact became", marketing(merged), gates.Verdict{Gate: gates.GateConsent, Reason: gates.ConsentWithdrawn}},
		{"erased", with(func(s *gates.Subject) { s.ContactID = erased }), gates.Verdict{Gate: gates.GateContact, Reason: gates.ContactErased}},
		{"no sender", with(func(s *gates.Subject) { s.Channel, s.Address = "sms", "+50688887777" }), gates.Verdict{Gate: gates.GateSender, Reason: gates.SenderMissing}},
		{"unknown tenant", with(func(s *gates.Subject) { s.TenantID = uuid.New() }), gates.Verdict{Gate: gates.GateTenant, Reason: gates.TenantDisabled}},
	}
	subjects := make([]gates.Subject, len(cases))
	for i, c := range cases {
		subjects[i] = c.s
	}
	got, err := gates.Ask(t.Context(), pool, subjects)
	require.NoError(t, err)
	for i, c := range cases {
		require.Equal(t, c.want, got[i], c.name)
	}

	exec(`UPDATE messaging.senders SET paused_at = now() WHERE tenant_id = $1`, tenant)
	got, err = gates.Ask(t.Context(), pool, []gates.Subject{base})
	require.NoError(t, err)
	require.Equal(t, gates.SenderPaused, got[0].Reason)
	require.True(t, got[0].Reason.Waits())

	// An address of another's domain must not go out with the account of all.
	exec(`UPDATE messaging.senders SET verified = false WHERE tenant_id = $1`, tenant)
	got, err = gates.Ask(t.Context(), pool, []gates.Subject{base})
	require.NoError(t, err)
	require.Equal(t, gates.SenderUnverified, got[0].Reason)
	require.True(t, got[0].Reason.Waits())
}

func newTenant(t *testing.T, pool *pgxpool.Pool) uuid.UUID {
	id := uuid.New()
	_, err := pool.Exec(t.Context(), `INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, $2, 'T', 'starter')`, id, "t-"+id.String()[:8])
	require.NoError(t, err)
	return id
}
