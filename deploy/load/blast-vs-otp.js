// One tenant's one-time codes beside another tenant's blast, from other machines,
// with k6 (https://k6.io): the profile of `carril bench blast-vs-otp` (FS-MSG-0005
// AC1) against a deployment. The bench compares with the same codes before the
// blast on one machine; this shows what a deployment holds over its own network,
// with the provider that it really has: **the blast is sent**. Point the
// deployment at a `carril sandbox` unless that is meant.
//
//   k6 run -e API=https://carril.example.com -e KEY=ck_... -e BLAST_KEY=ck_... -e BLAST=8f6f5ac1-... deploy/load/blast-vs-otp.js
//
// API       base URL of the ingest role; required
// KEY       API key of the tenant that asks for codes, with the scopes
//           messaging.messages.write and messaging.sends.read; required
// BLAST_KEY API key of the tenant that blasts, with the scope messaging.blasts.write
// BLAST     the draft to start, with its recipients; without it a blast to all
//           contacts with a consent is made from TEMPLATE
// TEMPLATE  a template of the tenant that blasts
// RATE      codes a second; 1 unless told
// BURSTS    seconds between two bursts of ten codes; 15 unless told, 0: none
// TIME      how long, with its unit; 1m unless told
// ADDRESS   domain of the codes' recipients; example.com unless told
import http from 'k6/http';
import { check, sleep } from 'k6';
import exec from 'k6/execution';
import { Counter, Trend } from 'k6/metrics';

const { API, KEY, BLAST_KEY, BLAST, TEMPLATE } = __ENV;
if (!API || !KEY || !BLAST_KEY || !(BLAST || TEMPLATE)) {
  throw new Error('API, KEY, BLAST_KEY, and BLAST or TEMPLATE must be set: see the head of this file');
}
const rate = Number(__ENV.RATE || 1);
const bursts = Number(__ENV.BURSTS || 15);
const domain = __ENV.ADDRESS || 'example.com';

const limited = new Counter('codes_rate_limited');
const refused = new Counter('codes_not_accepted');
const missing = new Counter('codes_not_sent');
const alone = new Trend('code_to_provider', true);
const together = new Trend('burst_code_to_provider', true);

const scenarios = {
  codes: {
    executor: 'constant-arrival-rate', // waits for nobody: a stall is seen by all that it delays
    rate,
    timeUnit: '1s',
    duration: __ENV.TIME || '1m',
    preAllocatedVUs: Math.max(10, Math.ceil(rate)),
    maxVUs: Math.max(50, 10 * rate),
  },
};
if (bursts > 0) {
  scenarios.bursts = {
    executor: 'constant-arrival-rate',
    exec: 'burst',
    rate: 1,
    timeUnit: `${bursts}s`,
    duration: __ENV.TIME || '1m',
    startTime: '500ms', // between two of the others
    preAllocatedVUs: 2,
  };
}

export const options = {
  scenarios,
  thresholds: {
    code_to_provider: ['p(99)<1000'],
    codes_not_accepted: ['count==0'],
    codes_not_sent: ['count==0'],
  },
  teardownTimeout: '10m',
  summaryTrendStats: ['avg', 'p(50)', 'p(95)', 'p(99)', 'max'],
};

const json = (key) => ({ headers: { Authorization: `Bearer ${key}`, 'Content-Type': 'application/json' } });

function code(kind, n, run) {
  return JSON.stringify({
    idempotency_key: `load-${run}-${kind}-${n}`,
    channel: 'email',
    category: 'transactional',
    recipients: [{ address: `${kind}-${run}-${n}@${domain}` }],
    content: { subject: 'Your code', text: '493021 is your code.' },
  });
}

function judge(res) {
  if (res.status === 429) {
    limited.add(1);
  } else if (!check(res, { 'is accepted': (r) => r.status === 202 })) {
    refused.add(1);
  }
}

// setup starts the blast.
export function setup() {
  const run = Date.now().toString(36);
  let id = BLAST;
  if (!id) {
    const draft = { name: 'load', template_id: TEMPLATE, audience: { type: 'contacts' }, idempotency_key: `load-${run}` };
    const made = http.post(`${API}/v1/messaging/blasts`, JSON.stringify(draft), json(BLAST_KEY));
    if (made.status !== 201) {
      throw new Error(`the blast is not made: ${made.status} ${made.body}`);
    }
    id = made.json('blast_id');
  }
  const started = http.post(`${API}/v1/messaging/blasts/${id}/start`, '{}', json(BLAST_KEY));
  if (started.status !== 200) {
    throw new Error(`the blast does not start: ${started.status} ${started.body}`);
  }
  return { run, from: new Date(Date.now() - 60000).toISOString() };
}

export default function (data) {
  judge(http.post(`${API}/v1/messaging/messages`, code('code', exec.scenario.iterationInTest, data.run), json(KEY)));
}

export function burst(data) {
  const first = 10 * exec.scenario.iterationInTest;
  const all = Array.from({ length: 10 }, (_, i) => ['POST', `${API}/v1/messaging/messages`, code('burst', first + i, data.run), json(KEY)]);
  http.batch(all).forEach(judge);
}

// teardown asks when each code went: from its request to the provider's answer,
// by the platform's own clocks. A code behind a burst of its own tenant counts as
// one that came alone.
export function teardown(data) {
  sleep(10); // for the last burst
  const to = new Date(Date.now() + 60000).toISOString();
  for (let cursor = ''; ; ) {
    const page = http.get(`${API}/v1/messaging/sends?from=${data.from}&to=${to}&limit=200${cursor}`, json(KEY)).json();
    for (const send of page.sends) {
      const kind = (send.address || '').split(`-${data.run}-`);
      if (kind.length === 2) {
        const history = http.get(`${API}/v1/messaging/sends/${send.send_id}`, json(KEY)).json('history') || [];
        const sent = history.filter((h) => h.status === 'sent').map((h) => Date.parse(h.recorded_at));
        if (sent.length === 0) {
          missing.add(1);
        } else {
          (kind[0] === 'burst' ? together : alone).add(Math.min(...sent) - Date.parse(send.requested_at));
        }
      }
    }
    if (!page.next_cursor) {
      return;
    }
    cursor = `&cursor=${page.next_cursor}`;
  }
}
