// Streamed chat over HTTP at a constant arrival rate: RATE requests per second
// for DURATION, whatever the server's pace. A refusal (429, 503) is counted in
// millrace_rejections and is no error; a broken stream is.
import { check } from 'k6';
import exec from 'k6/execution';
import { chatStream } from 'k6/x/millrace';
import { chat, http } from './target.js';

const rate = Number(__ENV.RATE || 4);

export const options = {
  scenarios: {
    chat: {
      executor: 'constant-arrival-rate',
      rate,
      timeUnit: '1s',
      duration: __ENV.DURATION || '1m',
      preAllocatedVUs: Math.ceil(rate * 4),
      maxVUs: Math.ceil(rate * 32),
      gracefulStop: '30s',
    },
  },
  thresholds: {
    millrace_stream_errors: ['count==0'],
    millrace_tokens: ['count>0'],
  },
  summaryTrendStats: ['min', 'med', 'avg', 'p(90)', 'p(95)', 'p(99)', 'max'],
};

export default function () {
  const answer = chatStream({
    url: `${http}/v1/chat/completions`,
    body: chat(exec.scenario.iterationInTest, { max_tokens: Number(__ENV.MAX_TOKENS || 64) }),
  });
  check(answer, { 'whole or refused': (r) => r.error === '' || r.status === 429 || r.status === 503 });
}
