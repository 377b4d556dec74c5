package benchmarks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/dispatcher/provider/sandbox"
	"github.com/softcrum/carril/internal/bench"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/signature"
)

const (
	// blastProviderRate is the provider's limit unless told: Resend's own.
	blastProviderRate = 5
	// blastStart is how long a blast may take to reach the provider.
	blastStart = time.Minute
)

// BlastVsOTP measures what a tenant's blast does to another tenant's one-time
// codes (FS-MSG-0005): codes in an open loop, one a second unless told, while a
// blast of marketing messages hungers for every request that the provider
// permits. The baseline is the same codes through the same system before the
// blast. Latencies run from the request for a code to the provider being asked
// to send it; the ratio is of p99.
func BlastVsOTP(ctx context.Context, cfg Config) (*bench.Report, error) {
	return measure(ctx, cfg, "blast-vs-otp", siteConfig{}, func(ctx context.Context, r *run, rep *bench.Report) error {
		body, err := eventBody(r.Payload, time.Now())
		if err != nil {
			return err
		}
		ts, err := r.tenants(ctx, 2)
		if err != nil {
			return err
		}
		for _, t := range ts {
			if err := r.seedRule(ctx, t, "transactional"); err != nil {
				return err
			}
		}
		if r.ProviderRate == 0 {
			r.ProviderRate = blastProviderRate
		}
		w, err := r.startWhole(ctx, r.ProviderRate)
		if err != nil {
			return err
		}
		b := &blastRun{e2e: &e2e{run: r, whole: w, tenants: ts[1:], body: body, fromRequest: true}, a: ts[0]}
		err = b.measure(ctx, rep)
		if serr := w.stop(); err == nil {
			err = serr
		}
		return err
	})
}

type blastRun struct {
	*e2e
	a tenant // who blasts; the e2e's tenant asks for codes
}

func (b *blastRun) measure(ctx context.Context, rep *bench.Report) error {
	rate := b.Rate
	if rate == 0 {
		rate = 1
	}
	rep.Unit, rep.Mode = "codes", fmt.Sprintf("%g a second in an open loop, beside a blast of %d at a provider that takes %g requests a second", rate, b.Blast, b.ProviderRate)
	rep.Baseline.What = "the same codes through the same system before the blast"
	rep.Settings["rate"], rep.Settings["provider_rate"], rep.Settings["blast"] = rate, b.ProviderRate, b.Blast
	if err := b.reportBack(); err != nil {
		return err
	}
	if _, err := b.codes(ctx, rate, min(b.Duration/2, 2*time.Second), "warm-up"); err != nil {
		return err
	}
	idle, err := b.codes(ctx, rate, b.Duration/2, "codes alone, for comparison")
	if err != nil {
		return err
	}
	if err := b.seedBlast(ctx); err != nil {
		return err
	}
	if err := b.blasting(ctx); err != nil {
		return err
	}
	before, start := b.whole.provider.Counters(), time.Now()
	beside, err := b.codes(ctx, rate, b.Duration/2, "codes beside the blast")
	if err != nil {
		return err
	}
	rep.Details = b.share(before, b.whole.provider.Counters(), time.Since(start))
	rep.Result, rep.Steps = bench.FiguresOf(beside.way, 1), beside.steps
	rep.Baseline.Figures, rep.Baseline.Steps = bench.FiguresOf(idle.way, 1), idle.steps
	if left, _ := rep.Details["blast_left"].(uint64); left == 0 {
		rep.Notes = append(rep.Notes, "the blast was over before the codes: a larger one, or a shorter time, measures more")
	}
	rep.Notes = append(rep.Notes, "codes go through a rule on an event, which shares its topics with other events; the messages API is shorter")
	return rep.Compare(bench.RatioOfP99)
}

// reportBack has the provider report what becomes of messages, as a real one
// does: a blast waits for the outcomes of its first sends.
func (b *blastRun) reportBack() error {
	secret, err := signature.ParseSecret(b.whole.secret)
	if err != nil {
		return fmt.Errorf("read the provider's secret: %w", err)
	}
	return b.whole.provider.SetWebhook(b.whole.API+"/v1/providers/resend/webhooks", secret)
}

// codes asks for codes in an open loop and waits until the provider has them.
func (b *blastRun) codes(ctx context.Context, rate float64, d time.Duration, what string) (measured, error) {
	b.begin()
	g := b.posts(4)
	defer g.close()
	start, cpu := time.Now(), bench.CPUTime()
	had := b.from(b.tenants[0])
	end := b.progress.For("blast-vs-otp: "+what, d)
	defer end()
	door := bench.OpenLoop{Rate: rate, Duration: d, Drain: opTimeout}.Run(ctx, g.ops)
	want := had + int(door.Latency.Count())
	for waiting := time.Now(); b.from(b.tenants[0]) < want && time.Since(waiting) < e2eDrain; {
		select {
		case <-ctx.Done():
			return measured{}, ctx.Err()
		case err := <-b.whole.Failed():
			return measured{}, fmt.Errorf("a role ended: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
	door.CPU = bench.CPUTime() - cpu
	return b.collect(ctx, door, start)
}

// from counts what the provider was first asked to send for a tenant.
func (b *blastRun) from(t tenant) (n int) {
	id := t.id.String()
	for _, r := range b.whole.provider.Receipts() {
		if r.TenantID == id && !r.Replay {
			n++
		}
	}
	return n
}

// seedBlast writes a running blast to people who agreed to it.
func (b *blastRun) seedBlast(ctx context.Context) error {
	const people = `
WITH people AS (
    INSERT INTO core.contacts (tenant_id, contact_id, cell_id, known)
    SELECT $1::uuid, gen_random_uuid(), 'cell-1', true FROM generate_series(1, $2::int) RETURNING contact_id
), consents AS (
    INSERT INTO messaging.consents (tenant_id, contact_id, channel, purpose, granted, source)
    SELECT $1::uuid, contact_id, 'email', 'marketing', true, 'bench' FROM people
), blast AS (
    INSERT INTO messaging.blasts (blast_id, tenant_id, channel, name, template_id, template_version, state, recipients, origin_event_id, correlation_id)
    VALUES ($3::uuid, $1::uuid, 'email', 'bench', 'receipt', 1, 'running', $2::int, $4::uuid, $3::uuid::text)
)
INSERT INTO messaging.blast_recipients (blast_id, position, contact_id, address, variables)
SELECT $3::uuid, row_number() OVER () - 1, contact_id, contact_id || '@example.com', '{"properties": {"invoice": "889"}, "points": 0}' FROM people`
	id := uuid.New()
	if _, err := b.pool.Exec(ctx, people, b.a.id, b.Blast, id, ids.PlatformEvent(id)); err != nil {
		return fmt.Errorf("write a blast: %w", err)
	}
	return nil
}

// blasting waits until the blast has reached the provider.
func (b *blastRun) blasting(ctx context.Context) error {
	end := b.progress.Phase("blast-vs-otp: waiting for the blast", nil)
	defer end()
	for waiting := time.Now(); b.from(b.a) == 0; {
		if time.Since(waiting) > blastStart {
			return errors.New("the blast did not reach the provider within " + blastStart.String())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-b.whole.Failed():
			return fmt.Errorf("a role ended: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

// share says how the provider's rate was used beside the codes.
func (b *blastRun) share(before, after sandbox.Counters, took time.Duration) map[string]any {
	requests, refused := after.Requests-before.Requests, after.RateLimited-before.RateLimited
	sent := after.Accepted - before.Accepted
	d := map[string]any{
		"requests_per_second":  round1(float64(requests) / took.Seconds()),
		"permitted_rate_used":  round3(float64(requests-refused) / took.Seconds() / b.ProviderRate),
		"answered_429_percent": round3(100 * float64(refused) / float64(max(1, requests))),
		"messages_per_second":  round1(float64(sent) / took.Seconds()),
		"blast_left":           uint64(max(0, b.Blast-b.from(b.a))),
	}
	return d
}
