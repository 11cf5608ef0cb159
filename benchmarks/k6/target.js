// The server under load and what the scripts ask of it.
export const http = __ENV.TARGET_HTTP || 'http://127.0.0.1:8080';
export const nats = __ENV.TARGET_NATS || 'nats://127.0.0.1:4222';
export const model = __ENV.TARGET_MODEL || 'tiny-chat';
export const subject = 'millrace.v1.chat.completions';

const questions = [
  'What is the capital of the US?',
  'What is the capital of France?',
  'What color is the sky?',
  'Count from one to five.',
  'Say hello.',
];

// A seed of its own per iteration: as many different answers as requests, yet
// the same ones in every run.
export function chat(iteration, fields) {
  return Object.assign(
    {
      model,
      messages: [{ role: 'user', content: questions[iteration % questions.length] }],
      max_tokens: 48,
      temperature: 0.5,
      seed: iteration,
    },
    fields,
  );
}
