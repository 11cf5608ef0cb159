// Random requests at random times: Poisson arrivals at each of RATES requests per
// second for STEP seconds, one rate after the other; lengths are log-normal. The
// result is latency against rate, and the highest rate within the bounds.
import { Counter, Rate, Trend } from 'k6/metrics';
import exec from 'k6/execution';
import { sleep } from 'k6';
import { SharedArray } from 'k6/data';
import { chatStream, natsRequest, natsStream } from 'k6/x/millrace';
import { http, model, nats } from './target.js';
import { requests, text } from './workload.js';
import { curve } from './curve.js';

const rates = (__ENV.RATES || '2,4').split(',').map(Number);
const step = Number(__ENV.STEP || 30);
const kind = __ENV.KIND || 'mix';
const bounds = { ttft: Number(__ENV.TTFT_MS || 1000), tpot: Number(__ENV.TPOT_MS || 100) };
const share = Number(__ENV.GOODPUT || 0.95); // of the requests that must be within the bounds

const plan = new SharedArray('requests', () =>
  requests({ rates, step, seed: Number(__ENV.SEED || 1), scale: Number(__ENV.SCALE || 0.2), longest: Number(__ENV.LONGEST || 900) }),
);

const tpot = new Trend('millrace_tpot', true);
const late = new Trend('millrace_late', true); // after its time, for want of a virtual user
const good = new Rate('millrace_goodput');
const done = new Counter('millrace_done');

const each = (metric, limits) => Object.fromEntries(rates.map((r, i) => [`${metric}{rate:${r}}`, limits && i === 0 ? limits : []]));

export const options = {
  scenarios: {
    load: {
      executor: 'shared-iterations',
      vus: Math.min(Number(__ENV.VUS || 200), plan.length),
      iterations: plan.length,
      maxDuration: `${rates.length * step + 120}s`,
    },
  },
  thresholds: {
    millrace_stream_errors: ['count==0'],
    millrace_late: ['p(99)<100'],
    // Higher rates may be too much: that is what they are for. The lowest must hold.
    ...each('millrace_goodput', [`rate>=${share}`]),
    ...each('millrace_ttft', [`p(99)<${4 * bounds.ttft}`]),
    ...each('millrace_itl', [`p(99)<${4 * bounds.tpot}`]),
    ...each('millrace_tpot', [`p(95)<${bounds.tpot}`]),
    ...each('millrace_tokens'),
    ...each('millrace_done'),
    ...each('millrace_rejections'),
  },
  summaryTrendStats: ['med', 'p(95)', 'p(99)', 'max'],
};

const send = {
  chat: (r) => chatStream({ url: `${http}/v1/chat/completions`, body: chat(r) }),
  completions: (r) => chatStream({ url: `${http}/v1/completions`, body: completion(r) }),
  'nats-request': (r) => natsRequest(nats, 'millrace.v1.chat.completions', chat(r)),
  'nats-stream': (r) => natsStream(nats, 'millrace.v1.chat.completions', chat(r)),
};
const kinds = kind === 'mix' ? Object.keys(send) : [kind];
if (!kinds.every((k) => send[k])) throw new Error(`KIND: found ${kind}, expected mix or ${Object.keys(send).join(', ')}`);

const sampling = (r) => ({ model, max_tokens: r.answer, temperature: 0.7, top_p: 1, top_k: 0, seed: r.seed, ignore_eos: true });
const chat = (r) => ({ ...sampling(r), messages: [{ role: 'user', content: text(r.prompt, r.seed) }] });
const completion = (r) => ({ ...sampling(r), prompt: text(r.prompt, r.seed) });

export default function () {
  const i = exec.scenario.iterationInTest;
  const r = plan[i];
  const due = exec.scenario.startTime + r.at;
  sleep(Math.max(0, due - Date.now()) / 1000);
  exec.vu.metrics.tags.rate = String(r.rate);
  late.add(Math.max(0, Date.now() - due));
  const a = send[kinds[i % kinds.length]](r);
  const streamed = a.ttft < a.duration && a.tokens > 1;
  const perToken = streamed ? (a.duration - a.ttft) / (a.tokens - 1) : 0;
  if (streamed && a.error === '') tpot.add(perToken);
  // A whole answer has no first token: it is in time if it were as a stream.
  const bound = streamed ? bounds.ttft : bounds.ttft + bounds.tpot * a.tokens;
  good.add(a.error === '' && a.ttft <= bound && perToken <= bounds.tpot);
  done.add(1);
}

export function handleSummary(data) {
  const value = (metric, rate, what) => (data.metrics[`${metric}{rate:${rate}}`] || { values: {} }).values[what] || 0;
  const rows = rates.map((rate) => ({
    rate,
    requests: value('millrace_done', rate, 'count'),
    refused: value('millrace_rejections', rate, 'count'),
    tokens_per_s: value('millrace_tokens', rate, 'count') / step,
    ttft_p50_ms: value('millrace_ttft', rate, 'med'),
    ttft_p99_ms: value('millrace_ttft', rate, 'p(99)'),
    itl_p99_ms: value('millrace_itl', rate, 'p(99)'),
    tpot_p50_ms: value('millrace_tpot', rate, 'med'),
    tpot_p95_ms: value('millrace_tpot', rate, 'p(95)'),
    goodput: value('millrace_goodput', rate, 'rate'),
  }));
  const held = rows.filter((r) => r.goodput >= share).map((r) => r.rate);
  const result = { kind, step_s: step, bounds_ms: bounds, share, highest_rate_within_bounds: Math.max(0, ...held), rows };
  const failed = Object.entries(data.metrics).flatMap(([name, m]) =>
    Object.entries(m.thresholds || {}).filter(([, t]) => !t.ok).map(([limit]) => `FAILED: ${name}: ${limit}, found ${JSON.stringify(m.values)}`),
  );
  const columns = Object.keys(rows[0]);
  const table = [columns, ...rows.map((r) => columns.map((c) => String(+r[c].toFixed(2))))].map((line) => line.map((v) => v.padStart(13)).join('')).join('\n');
  const out = { stdout: `${table}\nhighest rate with ${share * 100}% within ${bounds.ttft} ms to the first token and ${bounds.tpot} ms per token: ${result.highest_rate_within_bounds}/s\n${failed.join('\n')}\n` };
  if (__ENV.OUT) {
    const points = (key) => rows.map((r) => [r.rate, r[key]]);
    out[`${__ENV.OUT}.json`] = JSON.stringify(result, null, 2) + '\n';
    out[`${__ENV.OUT}-ttft.svg`] = curve(`Time to first token (${kind})`, [{ name: 'p50', points: points('ttft_p50_ms') }, { name: 'p99', points: points('ttft_p99_ms') }], bounds.ttft);
    out[`${__ENV.OUT}-tpot.svg`] = curve(`Time per output token (${kind})`, [{ name: 'p50', points: points('tpot_p50_ms') }, { name: 'p95', points: points('tpot_p95_ms') }], bounds.tpot);
  }
  return out;
}
