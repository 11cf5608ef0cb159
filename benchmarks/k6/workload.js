// The requests of a load test and their times: lengths and arrivals are random, but the
// same in every run with the same SEED.

// generator is mulberry32: uniform numbers in [0, 1).
function generator(seed) {
  let a = seed >>> 0;
  return () => {
    a = (a + 0x6d2b79f5) >>> 0;
    let t = a;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

// Log-normal fits: mean and standard deviation of the logarithms of 199 consecutive
// requests (from 18:41:12) of the Azure LLM inference trace 2023, conversation
// (Patel et al., Splitwise, ISCA 2024; CC BY). Medians 838 and 120 tokens.
const prompts = { mu: 6.73, sigma: 1.03 };
const answers = { mu: 4.79, sigma: 0.82 };

// logNormal by Box and Muller's transform, at least 1.
function logNormal(random, { mu, sigma }, scale, most) {
  const normal = Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
  return Math.min(most, Math.max(1, Math.round(scale * Math.exp(mu + sigma * normal))));
}

// requests draws the arrivals of a Poisson process whose rate is rates[k] per
// second in the k-th step. A step takes step seconds. at is in ms from the start.
export function requests({ rates, step, seed, scale, longest }) {
  const random = generator(seed);
  const all = [];
  for (const [k, rate] of rates.entries()) {
    for (let t = -Math.log(1 - random()) / rate; t < step; t -= Math.log(1 - random()) / rate) {
      all.push({
        at: (k * step + t) * 1000,
        rate,
        prompt: logNormal(random, prompts, scale, longest),
        answer: logNormal(random, answers, scale, longest),
        seed: all.length,
      });
    }
  }
  return all;
}

const words = 'the old man went to the river and saw a bird in the tree by the house on the hill'.split(' ');

// text of about n tokens that no other request has from its beginning on.
export function text(n, seed) {
  const out = [String(seed)];
  for (let i = 1; i < n; i++) out.push(words[(i + seed) % words.length]);
  return out.join(' ');
}
