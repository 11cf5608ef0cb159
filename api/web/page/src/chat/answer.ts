// Collects the chunks of an answer in its turn.
import type { Numbered } from "./stream";
import type { Stats, ToolCall, Turn } from "./tree";

/** collect returns the turn with a chunk. sent and now are times of one clock, in ms. */
export function collect(turn: Turn, { chunk, events }: Numbered, sent: number, now: number): Turn {
  const t = { ...turn };
  const stats: Stats = { ...t.stats };
  const choice = chunk.choices[0];
  const delta = choice?.delta;
  if (delta?.content || delta?.reasoning_content || delta?.tool_calls?.length) stats.firstToken ??= now - sent;
  if (delta?.content) t.content += delta.content;
  if (delta?.reasoning_content) t.reasoning = (t.reasoning ?? "") + delta.reasoning_content;
  if (delta?.tool_calls) t.calls = withCalls(t.calls ?? [], delta.tool_calls);
  if (choice?.finish_reason) stats.finish = choice.finish_reason;
  if (choice && !choice.finish_reason && events > 0) stats.tokens = events; // an event has a token
  if (choice) stats.took = now - sent;
  if (chunk.usage) {
    stats.tokens = chunk.usage.completion_tokens;
    stats.promptTokens = chunk.usage.prompt_tokens;
    stats.cachedTokens = chunk.usage.prompt_tokens_details?.cached_tokens ?? 0;
    stats.reasoningTokens = chunk.usage.completion_tokens_details?.reasoning_tokens ?? 0;
  }
  t.stats = stats;
  return t;
}

function withCalls(calls: ToolCall[], parts: NonNullable<Numbered["chunk"]["choices"][0]["delta"]["tool_calls"]>): ToolCall[] {
  const list = calls.map((c) => ({ ...c }));
  for (const part of parts) {
    const call = (list[part.index] ??= { id: "", name: "", arguments: "" });
    if (part.id) call.id = part.id;
    if (part.function?.name) call.name += part.function.name;
    if (part.function?.arguments) call.arguments += part.function.arguments;
  }
  return list;
}

const shortest = 100; // ms after the first token from which on its rest is measured: the network joins the pieces of a shorter one

/** speed is the number of tokens per second: after the first one, or of a short answer in all of its time. */
export function speed(s: Stats): number | undefined {
  if (!s.tokens || s.tokens < 2 || s.firstToken === undefined || !s.took) return undefined;
  const rest = s.took - s.firstToken;
  return rest < shortest ? (s.tokens * 1000) / s.took : ((s.tokens - 1) * 1000) / rest;
}

/** total is the number of tokens of an answer, with those before it was continued. */
export const total = (s: Stats): number => (s.tokens ?? 0) + (s.earlier ?? 0);

/** describe puts statistics into words. */
export function describe(s: Stats): string[] {
  const parts: string[] = [];
  const rate = speed(s);
  if (rate !== undefined) parts.push(`${rate < 100 ? rate.toFixed(1) : Math.round(rate)} tokens/s`);
  if (s.firstToken !== undefined) parts.push(`first token after ${(s.firstToken / 1000).toFixed(2)} s`);
  const tokens = total(s);
  if (tokens) parts.push(s.reasoningTokens ? `${tokens} tokens, ${s.reasoningTokens} of them reasoning` : `${tokens} tokens`);
  if (s.promptTokens) parts.push(s.cachedTokens ? `prompt ${s.promptTokens}, ${s.cachedTokens} cached` : `prompt ${s.promptTokens}`);
  if (s.finish === "length") parts.push("cut at the token limit");
  return parts;
}
