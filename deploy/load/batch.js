// Load on the front door from other machines, with k6 (https://k6.io): the
// profile of `carril bench batch`, batches of events over keep-alive connections,
// here in an open loop. The bench compares against a baseline on one machine; this shows
// what a deployment holds over its own network.
//
//   k6 run -e API=https://carril.example.com -e KEY=ck_... deploy/load/batch.js
//
// API   base URL of the ingest role; required
// KEY   API key with the scope core.events.write; required
// RATE  batches a second; 10 unless told. The tenant's plan must allow SIZE times as
//       many events.
// SIZE  events of a batch, at most 500; 500 unless told
// TIME  how long, with its unit; 1m unless told
// BYTES size of an event's body; 400 unless told
import http from 'k6/http';
import { check } from 'k6';
import exec from 'k6/execution';
import { Counter } from 'k6/metrics';

const { API, KEY } = __ENV;
if (!API || !KEY) {
  throw new Error('API and KEY must be set: see the head of this file');
}
const rate = Number(__ENV.RATE || 10);
const size = Number(__ENV.SIZE || 500);
const bytes = Number(__ENV.BYTES || 400);

const limited = new Counter('batches_rate_limited');
const refused = new Counter('batches_not_accepted');

export const options = {
  discardResponseBodies: true,
  scenarios: {
    batch: {
      executor: 'constant-arrival-rate', // waits for nobody: a stall is seen by all that it delays
      rate,
      timeUnit: '1s',
      duration: __ENV.TIME || '1m',
      preAllocatedVUs: Math.max(20, 2 * rate),
      maxVUs: Math.max(200, 10 * rate),
    },
  },
  summaryTrendStats: ['avg', 'p(50)', 'p(95)', 'p(99)', 'max'],
};

const params = { headers: { Authorization: `Bearer ${KEY}`, 'Content-Type': 'application/json' } };
const run = Date.now().toString(36);

function event(n) {
  const person = (n * 2654435761) % 100000;
  const e = {
    type: 'track',
    event_name: 'invoice.paid',
    idempotency_key: `load-${run}-${n}`,
    occurred_at: new Date().toISOString(),
    identifiers: { external_id: `c-${person}`, email: `c-${person}@example.com` },
    properties: { invoice: String(n), total: 182500.5, currency: 'COP', paid: true, note: '' },
  };
  e.properties.note = 'x'.repeat(Math.max(0, bytes - JSON.stringify(e).length));
  return e;
}

function batch(n) {
  return JSON.stringify({ events: Array.from({ length: size }, (_, i) => event(n * size + i)) });
}

export default function () {
  const res = http.post(`${API}/v1/core/batch`, batch(exec.scenario.iterationInTest), params);
  if (res.status === 429) {
    limited.add(1);
  } else if (!check(res, { 'is accepted': (r) => r.status === 202 })) {
    refused.add(1);
  }
}
