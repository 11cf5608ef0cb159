// A conversation is a tree of turns: an edited question and a regenerated answer are siblings of the first one. All functions
// are pure: they return changed copies.
import type { Settings } from "./settings";

export interface ToolCall {
  id: string;
  name: string;
  arguments: string; // JSON text, as the model wrote it
}

export interface Stats {
  firstToken?: number; // after the request, in ms
  took?: number; // request to end, in ms
  tokens?: number; // of the answer
  earlier?: number; // tokens of the answer before it was continued; the others are of the continuation
  reasoningTokens?: number; // of them
  promptTokens?: number;
  cachedTokens?: number; // of the prompt
  finish?: string;
}

export interface Turn {
  id: string;
  parent: string; // "": the first turn of a branch
  role: "user" | "assistant" | "tool";
  created: number; // ms since 1970, as all times
  content: string;
  reasoning?: string;
  calls?: ToolCall[];
  call?: string; // of a tool's result: the id of its call
  model?: string;
  state?: "running" | "stopped" | "failed"; // of an answer; undefined: it is complete
  error?: string;
  stream?: string; // id of the call while it runs, if the server keeps its answer
  edited?: boolean; // an answer: by the user
  before?: Before; // of a continued answer
  stats?: Stats;
}

/** Before is what an answer had before it was continued. */
export interface Before {
  content: string;
  reasoning?: string;
  earlier?: number; // tokens
}

export interface Conversation {
  id: string;
  title: string; // "": the beginning of the first question
  created: number;
  updated: number;
  settings: Settings;
  turns: Turn[]; // parents come before their children
  leaf: string; // the last turn of the branch that is shown; "": none
}

export const turnOf = (c: Conversation, id: string): Turn | undefined => c.turns.find((t) => t.id === id);

/** branch lists the turns from the first one to a leaf. */
export function branch(c: Conversation, leaf = c.leaf): Turn[] {
  const byId = new Map(c.turns.map((t) => [t.id, t]));
  const list: Turn[] = [];
  for (let t = byId.get(leaf); t; t = byId.get(t.parent)) list.push(t);
  return list.reverse();
}

/** siblings lists the turns that follow the same one, a turn itself included. */
export const siblings = (c: Conversation, turn: Turn): Turn[] => c.turns.filter((t) => t.parent === turn.parent && t.role === turn.role);

/** append adds a turn and shows its branch. */
export function append(c: Conversation, turn: Turn): Conversation {
  return { ...c, turns: [...c.turns, turn], leaf: turn.id, updated: turn.created };
}

/** replace changes a turn. */
export function replace(c: Conversation, turn: Turn): Conversation {
  return { ...c, turns: c.turns.map((t) => (t.id === turn.id ? turn : t)) };
}

/** show makes a turn part of the shown branch, with the newest turns after it. */
export function show(c: Conversation, id: string): Conversation {
  let leaf = id;
  for (;;) {
    const next = c.turns.findLast((t) => t.parent === leaf);
    if (!next) return { ...c, leaf };
    leaf = next.id;
  }
}

/** following lists a turn and all turns after it, in all branches. */
export function following(c: Conversation, id: string): Turn[] {
  const ids = new Set([id]);
  for (const t of c.turns) if (ids.has(t.parent)) ids.add(t.id);
  return c.turns.filter((t) => ids.has(t.id));
}

/** without removes a turn and all after it. If it was shown, another variant of it is, else the branch up to it. */
export function without(c: Conversation, turn: Turn): Conversation {
  const gone = new Set(following(c, turn.id).map((t) => t.id));
  const others = siblings(c, turn);
  const at = others.findIndex((t) => t.id === turn.id);
  const other = others[at - 1] ?? others[at + 1];
  const rest = { ...c, turns: c.turns.filter((t) => !gone.has(t.id)) };
  if (!gone.has(c.leaf)) return rest;
  return other ? show(rest, other.id) : { ...rest, leaf: turn.parent };
}

/** title is the name of a conversation. */
export function title(c: Conversation): string {
  if (c.title) return c.title;
  const first = c.turns.find((t) => t.role === "user")?.content.trim().replace(/\s+/g, " ") ?? "";
  return first.length > 60 ? `${first.slice(0, 59).trimEnd()}…` : first || "New chat";
}

/** found returns the place where a conversation has a text: "" in its title, else around it; undefined: nowhere. */
export function found(c: Conversation, text: string): string | undefined {
  const want = text.trim().toLowerCase();
  if (!want || title(c).toLowerCase().includes(want)) return "";
  for (const t of c.turns) {
    const at = t.content.toLowerCase().indexOf(want);
    if (at < 0) continue;
    const from = Math.max(0, at - 24);
    return `${from > 0 ? "…" : ""}${t.content.slice(from, at + want.length + 40).replace(/\s+/g, " ")}`;
  }
  return undefined;
}

/** continuable reports whether the server can continue an answer: a text that did not end by itself. A form would begin again. */
export function continuable(t: Turn, format: Settings["format"]): boolean {
  if (t.role !== "assistant" || !t.content || t.calls?.length || format !== "text" || t.state === "running") return false;
  return t.state === "stopped" || (t.edited === true && !t.before) || t.before !== undefined && t.state === "failed" || t.stats?.finish === "length";
}

/** continued is an answer at the beginning of its continuation. */
export function continued(t: Turn): Turn {
  const earlier = (t.stats?.earlier ?? 0) + (t.stats?.tokens ?? 0);
  const before: Before = { content: t.content, reasoning: t.reasoning, earlier };
  return { ...t, state: "running", error: undefined, before, stats: { earlier } };
}

/** rewound is an answer as its stream begins: without text, or with what it had before it was continued. */
export function rewound(t: Turn): Turn {
  return { ...t, content: t.before?.content ?? "", reasoning: t.before?.reasoning, calls: undefined, stats: { firstToken: t.stats?.firstToken, earlier: t.before?.earlier } };
}

/** taken is the number of tokens of a branch by the usage of its last answer; undefined if it has none. */
export function taken(turns: Turn[]): number | undefined {
  const last = turns.at(-1);
  if (!last?.stats?.promptTokens || (last.edited && !last.before) || last.state) return undefined;
  return last.stats.promptTokens + (last.stats.tokens ?? 0);
}

/** apiMessages are the messages of a branch in the form of the API. Answers that failed without text are left out. */
export function apiMessages(system: string, turns: Turn[]): object[] {
  const list: object[] = system.trim() ? [{ role: "system", content: system.trim() }] : [];
  for (const t of turns) {
    if (t.role === "user") list.push({ role: "user", content: t.content });
    else if (t.role === "tool") list.push({ role: "tool", tool_call_id: t.call, content: t.content });
    else if (t.calls?.length) {
      const calls = t.calls.map((k) => ({ id: k.id, type: "function", function: { name: k.name, arguments: k.arguments } }));
      list.push({ role: "assistant", content: t.content || null, tool_calls: calls, ...reasoned(t) });
    } else if (t.content) list.push({ role: "assistant", content: t.content, ...reasoned(t) });
  }
  return list;
}

const reasoned = (t: Turn) => (t.reasoning ? { reasoning_content: t.reasoning } : {});
