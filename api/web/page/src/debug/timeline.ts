// Computes the timelines of requests. It must not know the document.

export interface Request {
  id: string;
  tenant: string;
  model: string;
  worker: string;
  sequences: string[]; // ids in the state of the KV cache
  arrival: string; // RFC 3339, as all times; absent: it has not come
  tokenized?: string;
  begun?: string;
  first_token?: string;
  end?: string;
  prompt_tokens: number;
  cached_tokens: number;
  generated_tokens: number;
  moves: number;
  finish: string;
}

export const stages = ["tokenize", "queue", "prefill", "decode"] as const;
export type Stage = (typeof stages)[number];

export interface Span {
  stage: Stage;
  from: number; // ms
  to: number;
}

const ms = (t: string | undefined) => (t ? Date.parse(t) : undefined);

/** shortId is the part of a request's id that the pages show. */
export const shortId = (id: string): string => id.replace(/^(chatcmpl-|cmpl-|resp_|msg_)/, "").slice(0, 12);

/** bySequence maps the ids of sequences to those of their requests. */
export function bySequence(requests: Request[]): Map<string, string> {
  return new Map(requests.flatMap((r) => (r.sequences ?? []).map((s) => [s, r.id] as const)));
}

/** spans returns the stages of a request that have begun, each up to the next one, its end or now. */
export function spans(r: Request, now: number): Span[] {
  const end = ms(r.end) ?? now;
  const begins = [ms(r.arrival), ms(r.tokenized), ms(r.begun), ms(r.first_token)];
  const list: Span[] = [];
  stages.forEach((stage, i) => {
    const from = begins[i];
    if (from === undefined || from > end) return;
    const next = begins.slice(i + 1).find((t) => t !== undefined);
    list.push({ stage, from, to: Math.max(from, Math.min(next ?? end, end)) });
  });
  return list;
}

/** firstToken is the time to the first token in seconds. */
export function firstToken(r: Request): number | undefined {
  const first = ms(r.first_token);
  return first === undefined ? undefined : (first - ms(r.arrival)!) / 1000;
}

/** rate is the number of tokens per second after the first one. */
export function rate(r: Request, now: number): number | undefined {
  const first = ms(r.first_token);
  const time = first === undefined ? 0 : (ms(r.end) ?? now) - first;
  return r.generated_tokens > 1 && time > 0 ? ((r.generated_tokens - 1) * 1000) / time : undefined;
}
