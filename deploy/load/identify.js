// Load on the front door from other machines, with k6 (https://k6.io): the
// profile of `carril bench identify`, single identifies over keep-alive connections in
// an open loop. The bench compares against a baseline on one machine; this shows
// what a deployment holds over its own network.
//
//   k6 run -e API=https://carril.example.com -e KEY=ck_... deploy/load/identify.js
//
// API   base URL of the ingest role; required
// KEY   API key with the scope core.events.write; required
// RATE  identifies a second; 500 unless told. The tenant's plan must allow it.
// TIME  how long, with its unit; 1m unless told
// BYTES size of an identify's body; 400 unless told
import http from 'k6/http';
import { check } from 'k6';
import exec from 'k6/execution';
import { Counter } from 'k6/metrics';

const { API, KEY } = __ENV;
if (!API || !KEY) {
  throw new Error('API and KEY must be set: see the head of this file');
}
const rate = Number(__ENV.RATE || 500);
const bytes = Number(__ENV.BYTES || 400);

const limited = new Counter('events_rate_limited');
const refused = new Counter('events_not_accepted');

export const options = {
  discardResponseBodies: true,
  scenarios: {
    identify: {
      executor: 'constant-arrival-rate', // waits for nobody: a stall is seen by all that it delays
      rate,
      timeUnit: '1s',
      duration: __ENV.TIME || '1m',
      preAllocatedVUs: Math.max(20, Math.ceil(rate / 10)),
      maxVUs: Math.max(200, rate),
    },
  },
  summaryTrendStats: ['avg', 'p(50)', 'p(95)', 'p(99)', 'max'],
};

const params = { headers: { Authorization: `Bearer ${KEY}`, 'Content-Type': 'application/json' } };
const run = Date.now().toString(36);

function identify(n) {
  const person = (n * 2654435761) % 100000;
  const e = {
    idempotency_key: `load-${run}-${n}`,
    occurred_at: new Date().toISOString(),
    identifiers: { external_id: `c-${person}`, email: `c-${person}@example.com` },
    traits: { first_name: 'Ana', plan: 'pro', age: n % 80, city: 'Cali', newsletter: true, note: '' },
  };
  e.traits.note = 'x'.repeat(Math.max(0, bytes - JSON.stringify(e).length));
  return JSON.stringify(e);
}

export default function () {
  const res = http.post(`${API}/v1/core/identify`, identify(exec.scenario.iterationInTest), params);
  if (res.status === 429) {
    limited.add(1);
  } else if (!check(res, { 'is accepted': (r) => r.status === 202 })) {
    refused.add(1);
  }
}
