package benchmarks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/dispatcher/provider/sandbox"
	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/internal/bench"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/signature"
)

const (
	// blastProviderRate is the provider's limit unless told: Resend's own.
	blastProviderRate = 5
	// blastStart is how long a blast may take to reach the provider.
	blastStart = time.Minute
	// blastFirst is how many messages of a blast go out before it waits for their
	// outcomes: what is measured begins after that.
	blastFirst = 500
	// permittedShare of a provider's rate is what its bucket lets through unless it
	// is set otherwise.
	permittedShare = 0.9
)

// BlastVsOTP measures what a tenant's blast does to another tenant's one-time
// codes (FS-MSG-0005 AC1): codes asked for through the messages API in an open
// loop, one a second unless told, and in bursts of ten, while a blast of
// marketing messages hungers for every request that the provider permits. The
// baseline is the same codes through the same system before the blast. Latencies
// run from a code's 202 to the provider being asked to send it, and once more
// from the request; the ratio is of p99. Each of the provider's rates has a
// system, a baseline and a blast of its own; the first one is the result.
func BlastVsOTP(ctx context.Context, cfg Config) (*bench.Report, error) {
	if len(cfg.ProviderRates) == 0 {
		cfg.ProviderRates = []float64{blastProviderRate}
		if cfg.ProviderRate > 0 {
			cfg.ProviderRates[0] = cfg.ProviderRate
		}
	}
	plot := bench.Plot{Title: "One-time codes: from the 202 to the provider"}
	var all *bench.Report
	for i, rate := range cfg.ProviderRates {
		cfg.ProviderRate = rate
		rep, err := measure(ctx, cfg, "blast-vs-otp", siteConfig{}, func(ctx context.Context, r *run, rep *bench.Report) error {
			panel, err := r.blastVsOTP(ctx, rep)
			plot.Panels = append(plot.Panels, panel)
			return err
		})
		if err != nil {
			return nil, err
		}
		if i == 0 {
			all = rep
			continue
		}
		addRate(all, rep, rate)
	}
	if cfg.Plot != "" {
		if err := writePlot(cfg.Plot, plot); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// addRate puts another rate's report beside the first one's.
func addRate(all, rep *bench.Report, rate float64) {
	name := fmt.Sprintf("at %g/s: ", rate)
	all.More = append(all.More, bench.More{Name: name + "beside the blast", Figures: rep.Result, Steps: rep.Steps},
		bench.More{Name: name + "idle", Figures: rep.Baseline.Figures, Steps: rep.Baseline.Steps})
	for _, m := range rep.More {
		m.Name = name + m.Name
		all.More = append(all.More, m)
	}
	for k, v := range rep.Details {
		all.Details[fmt.Sprintf("%s_at_%g", k, rate)] = v
	}
	all.Details[fmt.Sprintf("ratio_of_p99_at_%g", rate)] = rep.Ratio
	for _, n := range rep.Notes {
		all.Notes = append(all.Notes, name+n)
	}
}

func writePlot(path string, plot bench.Plot) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("%w: plot: %w", app.ErrConfig, err)
	}
	return errors.Join(plot.WriteSVG(f), f.Close())
}

// blastVsOTP measures at one rate of the provider.
func (r *run) blastVsOTP(ctx context.Context, rep *bench.Report) (bench.Panel, error) {
	body, err := codeBody(r.Payload)
	if err != nil {
		return bench.Panel{}, err
	}
	ts, err := r.tenants(ctx, 2, apikey.ScopeMessagesWrite)
	if err != nil {
		return bench.Panel{}, err
	}
	for _, t := range ts {
		if err := r.seedRule(ctx, t, "transactional"); err != nil {
			return bench.Panel{}, err
		}
	}
	if r.Rate == 0 {
		r.Rate = 1
	}
	w, err := r.startWhole(ctx, wholeConfig{rate: r.ProviderRate, requests: 1 << 20, processes: r.Processes, workers: r.Workers})
	if err != nil {
		return bench.Panel{}, err
	}
	b := &blastRun{run: r, whole: w, body: body, a: ts[0], b: ts[1]}
	panel, err := b.measure(ctx, rep)
	if serr := w.stop(); serr != nil { // in the middle of a blast; the figures stand, and the site is removed
		rep.Notes = append(rep.Notes, "the platform did not stop in time: "+serr.Error())
	}
	return panel, err
}

type blastRun struct {
	*run
	whole *whole
	body  []byte // of a request for a code
	a, b  tenant // who blasts, and who asks for codes
	blast uuid.UUID
	next  atomic.Uint64
}

// permitted is how many requests a second the buckets let through.
func (b *blastRun) permitted() float64 { return permittedShare * b.ProviderRate }

func (b *blastRun) measure(ctx context.Context, rep *bench.Report) (bench.Panel, error) {
	rep.Unit, rep.Mode = "codes", fmt.Sprintf("%g a second in an open loop, from the 202 to the provider, beside a blast of %d at a provider that takes %g requests a second",
		b.Rate, b.Blast, b.ProviderRate)
	rep.Baseline.What = "the same codes through the same system before the blast"
	rep.Settings["rate"], rep.Settings["provider_rate"], rep.Settings["blast"] = b.Rate, b.ProviderRate, b.Blast
	rep.Settings["bursts"], rep.Settings["processes"], rep.Settings["workers"] = b.Bursts.String(), max(1, b.Processes), b.whole.set.Workers
	if err := b.reportBack(); err != nil {
		return bench.Panel{}, err
	}
	if err := b.seedBlast(ctx); err != nil {
		return bench.Panel{}, err
	}
	if _, err := b.measureCodes(ctx, min(b.Duration/2, 2*time.Second), "warm-up"); err != nil {
		return bench.Panel{}, err
	}
	idle, err := b.measureCodes(ctx, b.Duration/2, "codes alone, for comparison")
	if err != nil {
		return bench.Panel{}, err
	}
	if err := b.startBlast(ctx); err != nil {
		return bench.Panel{}, err
	}
	if err := b.blasting(ctx); err != nil {
		return bench.Panel{}, err
	}
	beside, err := b.measureCodes(ctx, b.Duration/2, "codes beside the blast")
	if err != nil {
		return bench.Panel{}, err
	}
	b.share(rep, beside)
	if err := b.reported(ctx, rep, beside); err != nil {
		return bench.Panel{}, err
	}
	b.figures(rep, idle, beside)
	return b.panel(idle, beside), rep.Compare(bench.RatioOfP99)
}

// figures fills in what became of the codes.
func (b *blastRun) figures(rep *bench.Report, idle, beside *codes) {
	of := func(c *codes, which func(code) bool, from func(code) time.Time) bench.Figures {
		return bench.FiguresOf(c.stats(which, from), 1)
	}
	rep.Result, rep.Steps = of(beside, code.plain, fromAccepted), beside.steps
	rep.Baseline.Figures, rep.Baseline.Steps = of(idle, code.plain, fromAccepted), idle.steps
	add := func(name string, f bench.Figures) { rep.More = append(rep.More, bench.More{Name: name, Figures: f}) }
	add("from the request, beside the blast", of(beside, code.plain, fromAsked))
	add("from the request, idle", of(idle, code.plain, fromAsked))
	if b.Bursts > 0 {
		burst := func(c code) bool { return c.burst }
		add("bursts of 10, beside the blast", of(beside, burst, fromAccepted))
		add("bursts of 10, idle", of(idle, burst, fromAccepted))
		behind := func(c code) bool { return c.shadowed }
		add("alone behind a burst, beside the blast", of(beside, behind, fromAccepted))
		add("alone behind a burst, idle", of(idle, behind, fromAccepted))
		rep.Notes = append(rep.Notes, fmt.Sprintf("a code that is asked for within %s of a burst of its own tenant counts as behind it: so long the burst takes at the permitted rate",
			b.shadow().Round(time.Millisecond)))
	}
	if idle := rep.Baseline.P95; idle > 0 {
		rep.Details["p95_by_idle"] = round3(rep.Result.P95 / idle)
	}
}

// panel draws both measurements over each other.
func (b *blastRun) panel(idle, beside *codes) bench.Panel {
	burst := func(c code) bool { return c.burst || c.shadowed }
	p := bench.Panel{Title: fmt.Sprintf("A provider that takes %g requests a second", b.ProviderRate), Line: time.Second, Series: []bench.Series{
		{Name: "idle", Colour: "#2166ac", Points: idle.points(code.plain)},
		{Name: fmt.Sprintf("beside a blast of %d", b.Blast), Colour: "#d6604d", Points: beside.points(code.plain)}}}
	if b.Bursts > 0 {
		p.Series = append(p.Series, bench.Series{Name: "bursts of 10 and behind them, idle", Colour: "#92c5de", Hollow: true, Points: idle.points(burst)},
			bench.Series{Name: "the same beside the blast", Colour: "#f4a582", Hollow: true, Points: beside.points(burst)})
	}
	return p
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

// seedBlast writes a blast to people who agreed to it, which does not run yet: a
// million of them keep PostgreSQL busy for a while, and that is in no figure.
// Their ids follow each other, as those of people do that come one by one.
func (b *blastRun) seedBlast(ctx context.Context) error {
	end := b.progress.Phase(fmt.Sprintf("blast-vs-otp: writing a blast to %d people", b.Blast), nil)
	defer end()
	const person = `('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid`
	b.blast = uuid.New()
	for _, q := range []struct {
		sql  string
		args []any
	}{
		{`INSERT INTO core.contacts (tenant_id, contact_id, cell_id, known) SELECT $1::uuid, ` + person + `, 'cell-1', true FROM generate_series(1, $2::int) n`,
			[]any{b.a.id, b.Blast}},
		{`INSERT INTO messaging.consents (tenant_id, contact_id, channel, purpose, granted, source)
SELECT $1::uuid, ` + person + `, 'email', 'marketing', true, 'bench' FROM generate_series(1, $2::int) n`, []any{b.a.id, b.Blast}},
		{`INSERT INTO messaging.blasts (blast_id, tenant_id, channel, name, template_id, template_version, state, recipients, origin_event_id, correlation_id)
VALUES ($1::uuid, $2::uuid, 'email', 'bench', 'receipt', 1, 'draft', $3::int, $4::uuid, $1::uuid::text)`, []any{b.blast, b.a.id, b.Blast, ids.PlatformEvent(b.blast)}},
		{`INSERT INTO messaging.blast_recipients (blast_id, position, contact_id, address, variables)
SELECT $1::uuid, n - 1, ` + person + `, 'p-' || lpad(n::text, 7, '0') || '@example.com', '{"properties": {"invoice": "889"}, "points": 0}' FROM generate_series(1, $2::int) n`,
			[]any{b.blast, b.Blast}},
		// What autovacuum does within its minute, and would do in the middle of this.
		{`VACUUM (ANALYZE) core.contacts`, nil}, {`VACUUM (ANALYZE) messaging.consents`, nil}, {`VACUUM (ANALYZE) messaging.blast_recipients`, nil},
	} {
		if _, err := b.pool.Exec(ctx, q.sql, q.args...); err != nil {
			return fmt.Errorf("write a blast: %w", err)
		}
	}
	return nil
}

// startBlast has it run.
func (b *blastRun) startBlast(ctx context.Context) error {
	if _, err := b.pool.Exec(ctx, `UPDATE messaging.blasts SET state = 'running', started_at = now(), updated_at = now() WHERE blast_id = $1`, b.blast); err != nil {
		return fmt.Errorf("start the blast: %w", err)
	}
	return nil
}

// blasting waits until the blast has reached the provider, and a large one until
// it is past its first messages.
func (b *blastRun) blasting(ctx context.Context) error {
	end := b.progress.Phase("blast-vs-otp: waiting for the blast", nil)
	defer end()
	enough := 1
	if b.Blast > 2*blastFirst {
		enough = blastFirst + 1
	}
	start := blastStart + time.Duration(float64(blastFirst)/100/b.ProviderRate*float64(time.Second))
	for waiting := time.Now(); b.from(b.a) < enough; {
		if time.Since(waiting) > start {
			return errors.New("the blast did not reach the provider within " + start.String())
		}
		if err := b.whole.wait(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// reported says how long what the provider reported meanwhile was on its way to the
// histories of the blast's sends: so long would a small blast's reports be, which stand
// among them and which it waits for before most of it goes.
func (b *blastRun) reported(ctx context.Context, rep *bench.Report, c *codes) error {
	const sql = `SELECT count(*), coalesce(percentile_cont(0.95) WITHIN GROUP (ORDER BY w), 0), coalesce(max(w), 0)
FROM (SELECT 1000 * extract(epoch FROM recorded_at - occurred_at)::float8 AS w FROM messaging.send_status_history
    WHERE requested_at > now() - interval '2 days' AND tenant_id = $1 AND recorded_at >= $2 AND recorded_at < $3 AND NOT starts_with(provider_event_id, 'carril:')) h`
	var n int
	var p95, most float64
	if err := b.pool.QueryRow(ctx, sql, b.a.id, c.start, c.end).Scan(&n, &p95, &most); err != nil {
		return fmt.Errorf("read how late reports were: %w", err)
	}
	rep.Details["reports_per_second"] = round1(float64(n) / max(c.end.Sub(c.start).Seconds(), 1e-3))
	rep.Details["report_p95_ms"], rep.Details["report_max_ms"] = round1(p95), round1(most)
	return nil
}

// share says how the provider's rate was used while both rails had work: from
// the first code until the last one is through, or the blast is.
func (b *blastRun) share(rep *bench.Report, c *codes) {
	from, until := c.start, c.end
	sent, last := 0, time.Time{}
	for _, r := range b.whole.provider.Receipts() {
		if r.TenantID == b.a.id.String() && !r.Replay {
			sent++
			last = r.At
		}
	}
	left := max(0, b.Blast-sent)
	if left == 0 && last.Before(until) {
		until = last
	}
	var taken, refused, messages int
	for _, r := range b.whole.provider.Requests() {
		switch {
		case r.At.Before(from) || r.At.After(until):
		case throttled(r):
			refused++
		default:
			taken++
			messages += r.Count
		}
	}
	seconds := max(until.Sub(from).Seconds(), 1e-3)
	rep.Details = map[string]any{
		"requests_per_second":  round1(float64(taken+refused) / seconds),
		"permitted_rate_used":  round3(float64(taken) / seconds / b.permitted()),
		"provider_rate_used":   round3(float64(taken) / seconds / b.ProviderRate),
		"answered_429":         refused,
		"answered_429_percent": round3(100 * float64(refused) / float64(max(1, taken+refused))),
		"messages_per_second":  round1(float64(messages) / seconds),
		"both_rails_seconds":   round1(seconds),
		"blast_left":           uint64(left),
	}
	rep.Notes = append(rep.Notes, fmt.Sprintf("permitted is what the buckets let through: %g requests a second, %g of the provider's", b.permitted(), permittedShare))
	if left == 0 {
		rep.Notes = append(rep.Notes, fmt.Sprintf("the blast was over after %.1f of %.1f seconds: a larger one, or a shorter time, measures more", seconds, c.end.Sub(from).Seconds()))
	}
}

func throttled(r sandbox.Request) bool { return r.Answer == "429" }
