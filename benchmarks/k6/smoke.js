// Thirty seconds of everything, with few virtual users: streams and cancels
// over HTTP and NATS, requests over NATS. Exits with 99 if a threshold fails.
import { check, sleep } from 'k6';
import exec from 'k6/execution';
import { get } from 'k6/http';
import { chatStream, natsRequest, natsStream } from 'k6/x/millrace';
import { chat, http, nats, subject } from './target.js';

const scenario = (name, vus) => ({
  executor: 'constant-vus',
  exec: name,
  vus,
  duration: '25s',
  gracefulStop: '5s',
});

export const options = {
  scenarios: {
    chatOverHTTP: scenario('chatOverHTTP', 3),
    chatOverNATS: scenario('chatOverNATS', 3),
    requestOverNATS: scenario('requestOverNATS', 1),
    cancelOverHTTP: scenario('cancelOverHTTP', 1),
    cancelOverNATS: scenario('cancelOverNATS', 1),
  },
  thresholds: {
    checks: ['rate==1'],
    millrace_stream_errors: ['count==0'],
    millrace_rejections: ['count==0'],
    millrace_tokens: ['count>0'],
    'millrace_cancelled{transport:http}': ['count>0'],
    'millrace_cancelled{transport:nats}': ['count>0'],
    'millrace_ttft{transport:http}': ['p(95)<5000'],
    'millrace_ttft{transport:nats}': ['p(95)<5000'],
    'iterations{scenario:chatOverHTTP}': ['count>0'],
    'iterations{scenario:chatOverNATS}': ['count>0'],
    'iterations{scenario:requestOverNATS}': ['count>0'],
  },
};

const url = `${http}/v1/chat/completions`;
const next = () => exec.scenario.iterationInTest;
const whole = {
  'no error': (r) => r.error === '',
  'has text': (r) => r.text.length > 0,
  'ended by itself': (r) => r.finishReason === 'stop' || r.finishReason === 'length',
};
const abandoned = {
  'no error': (r) => r.error === '',
  'was cancelled': (r) => r.cancelled,
};
const endless = { max_tokens: 400, ignore_eos: true };

export function setup() {
  const ready = get(`${http}/health/ready`);
  if (ready.status !== 200) {
    exec.test.abort(`${http} is not ready: status ${ready.status} ${ready.body || ready.error}`);
  }
}

export function chatOverHTTP() {
  check(chatStream({ url, body: chat(next()) }), whole);
}

export function chatOverNATS() {
  check(natsStream(nats, subject, chat(next())), whole);
}

export function requestOverNATS() {
  check(natsRequest(nats, subject, chat(next())), whole);
}

export function cancelOverHTTP() {
  check(chatStream({ url, body: chat(next(), endless), cancelAfter: 3 }), abandoned);
}

export function cancelOverNATS() {
  check(natsStream(nats, subject, chat(next(), endless), { cancelAfter: 3 }), abandoned);
}

// Abandoned streams must end: the server has nothing left to run.
export function teardown() {
  let running = NaN;
  for (let tries = 0; tries < 50 && running !== 0; tries++) {
    sleep(0.1);
    running = gauge(get(`${http}/metrics`).body, 'millrace_num_requests_running');
  }
  check(running, { 'nothing runs at the end': (n) => n === 0 });
}

// gauge sums a gauge over its labels; NaN if it is not there.
function gauge(text, name) {
  const values = String(text)
    .split('\n')
    .filter((line) => line.startsWith(`${name} `) || line.startsWith(`${name}{`))
    .map((line) => Number(line.slice(line.lastIndexOf(' '))));
  return values.length ? values.reduce((a, b) => a + b) : NaN;
}
