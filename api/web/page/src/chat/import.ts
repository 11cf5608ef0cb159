// Reads the file of an export, and joins its conversations with those of the browser. All functions are pure.
import { readSettings } from "./settings";
import type { Conversation, Stats, ToolCall, Turn } from "./tree";

type Fields = Record<string, unknown>;

/** found names a JSON value for a message. */
function found(v: unknown): string {
  if (v === null) return "null";
  if (v === undefined) return "nothing";
  if (Array.isArray(v)) return `a list of ${v.length}`;
  if (typeof v === "object") return "an object";
  const text = JSON.stringify(v);
  return text.length > 40 ? `${text.slice(0, 39)}…` : text;
}

function expect(ok: boolean, where: string, expected: string, value: unknown): asserts ok {
  if (!ok) throw new Error(`${where}: found ${found(value)}, expected ${expected}`);
}

function object(where: string, v: unknown): Fields {
  expect(typeof v === "object" && v !== null && !Array.isArray(v), where, "an object", v);
  return v as Fields;
}

function list(where: string, v: unknown): unknown[] {
  expect(Array.isArray(v), where, "a list", v);
  return v;
}

/** text reads a string. Without other, it must be there. */
function text(where: string, o: Fields, name: string, other?: string): string {
  const v = o[name] ?? other;
  expect(typeof v === "string", `${where}.${name}`, "a text", v);
  return v;
}

function time(where: string, o: Fields, name: string): number {
  const v = o[name];
  expect(typeof v === "number" && Number.isFinite(v) && v >= 0, `${where}.${name}`, "milliseconds since 1970", v);
  return v;
}

const optional = (where: string, o: Fields, name: string): string | undefined => (o[name] === undefined ? undefined : text(where, o, name));

/** conversationsOf reads the text of an exported file: a list of conversations, or one. It throws an Error with what it found. */
export function conversationsOf(json: string): Conversation[] {
  let value: unknown;
  try {
    value = JSON.parse(json);
  } catch (error) {
    throw new Error(`expected the JSON of an export, found an error: ${(error as Error).message}`);
  }
  const all = Array.isArray(value) ? value : [value];
  return all.map((v, i) => conversation(`[${i}]`, v));
}

function conversation(where: string, v: unknown): Conversation {
  const o = object(where, v);
  const id = text(where, o, "id");
  expect(id !== "", `${where}.id`, "a text that is not empty", id);
  const turns: Turn[] = [];
  const ids = new Set([""]);
  list(`${where}.turns`, o.turns).forEach((t, i) => {
    const now = turn(`${where}.turns[${i}]`, t);
    expect(!ids.has(now.id), `${where}.turns[${i}].id`, "an id of its own", now.id);
    expect(ids.has(now.parent), `${where}.turns[${i}].parent`, "the id of an earlier turn, or none", now.parent);
    ids.add(now.id);
    turns.push(now);
  });
  const leaf = text(where, o, "leaf", turns.at(-1)?.id ?? "");
  expect(ids.has(leaf), `${where}.leaf`, "the id of a turn", leaf);
  return { id, title: text(where, o, "title", ""), created: time(where, o, "created"), updated: time(where, o, "updated"), settings: readSettings(o.settings), turns, leaf };
}

const roles = ["user", "assistant", "tool"];

function turn(where: string, v: unknown): Turn {
  const o = object(where, v);
  expect(roles.includes(o.role as string), `${where}.role`, roles.join(", "), o.role);
  const t: Turn = { id: text(where, o, "id"), parent: text(where, o, "parent"), role: o.role as Turn["role"], created: time(where, o, "created"), content: text(where, o, "content") };
  for (const name of ["reasoning", "call", "model", "error"] as const) {
    const value = optional(where, o, name);
    if (value !== undefined) t[name] = value;
  }
  if (o.calls !== undefined) t.calls = list(`${where}.calls`, o.calls).map((c, i) => toolCall(`${where}.calls[${i}]`, c));
  if (o.state !== undefined) t.state = o.state === "failed" ? "failed" : "stopped"; // the stream of a running one is of another time
  if (o.edited === true) t.edited = true;
  if (o.stats !== undefined) t.stats = stats(object(`${where}.stats`, o.stats));
  return t;
}

function toolCall(where: string, v: unknown): ToolCall {
  const o = object(where, v);
  return { id: text(where, o, "id"), name: text(where, o, "name"), arguments: text(where, o, "arguments") };
}

/** stats keeps the numbers that the page shows. */
function stats(o: Fields): Stats {
  const s: Stats = {};
  for (const name of ["firstToken", "took", "tokens", "earlier", "reasoningTokens", "promptTokens", "cachedTokens"] as const) {
    const v = o[name];
    if (typeof v === "number" && Number.isFinite(v)) s[name] = v;
  }
  if (typeof o.finish === "string") s.finish = o.finish;
  return s;
}

/** joined is a conversation with the turns of both copies. The copy that changed last decides where they differ. */
export function joined(mine: Conversation, theirs: Conversation): Conversation {
  const [old, last] = theirs.updated > mine.updated ? [mine, theirs] : [theirs, mine];
  const known = new Set(last.turns.map((t) => t.id));
  const more = old.turns.filter((t) => !known.has(t.id));
  if (more.length === 0) return last;
  // A parent that both have comes before its children, since the added ones come last and keep their order.
  return { ...last, turns: [...last.turns, ...more], updated: last.updated };
}
