// The state of the chat page, and what changes it.
import { batch, computed, signal, type Signal } from "@preact/signals";
import { key, keyed, reason, refusal, Refusal } from "../key";
import { read, write } from "../stored";
import { collect, describe } from "./answer";
import * as db from "./db";
import { conversationsOf, joined } from "./import";
import { changed, fields, readSettings, type Settings } from "./settings";
import { ask, resume, type Numbered, type Reader } from "./stream";
import { apiMessages, append, branch, continuable, continued, replace, rewound, show, title, turnOf, without, type Conversation, type Turn } from "./tree";

export const conversations = signal<Conversation[]>([]); // the one that changed last first
export const loaded = signal(false); // the stored ones are there
export const current = signal(""); // id of the shown one; "": a new one
export const conversation = computed(() => conversations.value.find((c) => c.id === current.value));

export interface Model {
  id: string;
  max_model_len?: number;
}
export const models = signal<Model[]>([]);
export const model = signal(read("local", "millrace.model"));
export const server = signal<"loading" | "ready" | "key" | "away">("loading");

/** needsKey opens the dialog for a key. */
export const needsKey = signal(false);
/** spoken is read by screen readers when it changes. */
export const spoken = signal("");

/** Answers that are being read, by the id of their turn. The turn of the conversation is changed at the end. */
interface Running {
  turn: Signal<Turn>;
  conversation: string;
  abort: AbortController;
  waiting: Signal<boolean>; // the connection is lost
}
export const running = signal<ReadonlyMap<string, Running>>(new Map());
export const busy = computed(() => [...running.value.values()].some((r) => r.conversation === current.value));

/** defaults are the settings that a new conversation begins with: the model's own, until the user chooses others. */
export const defaults = signal<Settings>(readDefaults());
/** fresh are the settings of the new conversation, until its first question. */
const fresh = signal<Settings>(defaults.value);
export const settings = computed(() => conversation.value?.settings ?? fresh.value);

function readDefaults(): Settings {
  try {
    return readSettings(JSON.parse(read("local", "millrace.defaults") || "null"));
  } catch {
    return readSettings(null);
  }
}

export function changeSettings(s: Settings): void {
  const c = conversation.value;
  if (c) change({ ...c, settings: s });
  else fresh.value = s;
}

/** useAsDefaults makes the shown settings those of new conversations. */
export function useAsDefaults(): void {
  defaults.value = settings.value;
  write("local", "millrace.defaults", changed(settings.value) ? JSON.stringify(settings.value) : "");
}

// randomUUID exists in secure contexts only, and a server in a local network may have no TLS.
const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");

/** change stores a conversation in its place. */
function change(c: Conversation): void {
  const rest = conversations.value.filter((o) => o.id !== c.id);
  conversations.value = [c, ...rest].sort((a, b) => b.updated - a.updated);
  void db.put(c).then(tellOthers);
}

// Other tabs show what this one changes.
const channel = typeof BroadcastChannel === "undefined" ? undefined : new BroadcastChannel("millrace");
const tellOthers = () => channel?.postMessage("changed");
channel?.addEventListener("message", async () => {
  const mine = new Set([...running.value.values()].map((r) => r.conversation)); // newer than what is stored
  const stored = await db.all();
  const kept = conversations.value.filter((c) => mine.has(c.id));
  conversations.value = [...kept, ...stored.filter((c) => !mine.has(c.id))].sort((a, b) => b.updated - a.updated);
});

/** begin reads the stored conversations, and continues the answers that were running when the page was left. */
export async function begin(): Promise<void> {
  const list = await db.all();
  const at = decodeURIComponent(location.hash.slice(1));
  batch(() => {
    conversations.value = list;
    loaded.value = true;
    if (list.some((c) => c.id === at)) current.value = at;
  });
  void loadModels();
  for (const c of list) {
    for (const t of c.turns) {
      if (t.state === "running") void proceed(c.id, t);
    }
  }
}

/** proceed continues an answer of an earlier visit, or says that it is not complete. Another tab may be reading it. */
async function proceed(id: string, turn: Turn): Promise<void> {
  if (!turn.stream) {
    const c = conversations.value.find((o) => o.id === id);
    if (c) change(replace(c, { ...turn, state: "stopped" }));
    return;
  }
  const sent = performance.now() - (Date.now() - turn.created);
  await receive(id, turn, rewound(turn), sent, (reader) => resume(turn.stream!, reader));
}

export function open(id: string): void {
  fresh.value = defaults.value;
  current.value = id;
  history.replaceState(null, "", id ? `#${encodeURIComponent(id)}` : location.pathname);
}

export function rename(id: string, name: string): void {
  const c = conversations.value.find((o) => o.id === id);
  if (c && name.trim() !== title(c)) change({ ...c, title: name.trim() });
}

export async function remove(id: string): Promise<void> {
  for (const r of running.value.values()) if (r.conversation === id) r.abort.abort();
  conversations.value = conversations.value.filter((c) => c.id !== id);
  if (current.value === id) open("");
  await db.remove(id);
  tellOthers();
}

/** add joins the conversations of an exported file with the others, and says what it did. It throws an Error if the file has others. */
export function add(json: string): string {
  const list = conversationsOf(json);
  let changes = 0;
  for (const theirs of list) {
    const mine = conversations.value.find((c) => c.id === theirs.id);
    const both = mine ? joined(mine, theirs) : theirs;
    if (both === mine) continue;
    changes++;
    change(both);
  }
  const known = list.length - changes;
  return `${changes === 1 ? "1 conversation" : `${changes} conversations`} imported.${known > 0 ? ` ${known} ${known === 1 ? "is" : "are"} here already.` : ""}`;
}

/** say adds a question to the shown branch, or to a new conversation, and requests the answer. */
export function say(text: string): void {
  if (!text.trim() || busy.value) return;
  const now = Date.now();
  const c: Conversation = conversation.value ?? { id: newId(), title: "", created: now, updated: now, settings: fresh.value, turns: [], leaf: "" };
  const turn: Turn = { id: newId(), parent: c.leaf, role: "user", created: now, content: text.trim() };
  change(append(c, turn));
  open(c.id);
  answer(c.id);
}

/** edit sends another question instead of an earlier one, as a new branch. */
export function edit(turn: Turn, text: string): void {
  const c = conversation.value;
  if (!c || busy.value || !text.trim()) return;
  change(append(c, { id: newId(), parent: turn.parent, role: "user", created: Date.now(), content: text.trim() }));
  answer(c.id);
}

/** editAnswer puts another text in the place of an answer, as a new branch. The conversation continues after it. */
export function editAnswer(turn: Turn, text: string): void {
  const c = conversation.value;
  if (!c || busy.value || !text.trim() || text === turn.content) return;
  const { id: _, stats: _s, before: _b, state: _t, error: _e, ...rest } = turn;
  change(append(c, { ...rest, id: newId(), created: Date.now(), content: text, edited: true }));
}

/** removeTurn removes a turn and all after it. */
export function removeTurn(turn: Turn): void {
  const c = conversation.value;
  if (c && !busy.value) change({ ...without(c, turn), updated: Date.now() });
}

/** answerLast requests the answer that the shown branch has not. */
export function answerLast(): void {
  const c = conversation.value;
  if (c && !busy.value) answer(c.id);
}

/** again requests another answer to the same question, as a new branch. */
export function again(turn: Turn): void {
  const c = conversation.value;
  if (!c || busy.value) return;
  change({ ...c, leaf: turn.parent });
  answer(c.id);
}

/** results adds the results of tools, in the order of the calls, and requests the answer to them. */
export function results(turn: Turn, texts: string[]): void {
  let c = conversation.value;
  if (!c || busy.value) return;
  c = { ...c, leaf: turn.id };
  (turn.calls ?? []).forEach((call, i) => {
    c = append(c!, { id: newId(), parent: c!.leaf, role: "tool", created: Date.now(), content: texts[i] ?? "", call: call.id });
  });
  change(c);
  answer(c.id);
}

/** proceedWith continues an answer that was cut or stopped, in its turn. */
export function proceedWith(turn: Turn): void {
  const c = conversation.value;
  if (!c || busy.value || !continuable(turn, c.settings.format)) return;
  const served = models.value.some((m) => m.id === turn.model) ? turn.model : model.value;
  const now = continued({ ...turn, model: served, created: Date.now() });
  let request: object;
  try {
    const messages = apiMessages(c.settings.system, branch(c, turn.id));
    request = { model: served, messages, continue_final_message: true, ...fields(c.settings) };
  } catch (error) {
    change(replace(c, { ...turn, before: now.before, state: "failed", error: reason(error) }));
    return;
  }
  change(replace(c, now));
  void receive(c.id, now, now, performance.now(), (reader) => ask(request, reader));
}

export function showBranch(turn: Turn): void {
  const c = conversation.value;
  if (c && !busy.value) change(show(c, turn.id));
}

export function stop(): void {
  for (const r of running.value.values()) if (r.conversation === current.value) r.abort.abort();
}

/** answer requests the answer to the shown branch of a conversation. */
function answer(id: string): void {
  const c = conversations.value.find((o) => o.id === id)!;
  const turn: Turn = {
    id: newId(), parent: c.leaf, role: "assistant", created: Date.now(), content: "", state: "running", model: model.value || models.value[0]?.id,
  };
  let request: object;
  try {
    request = { model: turn.model, messages: apiMessages(c.settings.system, branch(c)), ...fields(c.settings) };
  } catch (error) {
    change(append(c, { ...turn, state: "failed", error: reason(error) }));
    return;
  }
  change(append(c, turn));
  void receive(id, turn, turn, performance.now(), (reader) => ask(request, reader));
}

const storeEvery = 1000; // ms between copies of an unfinished answer in the browser's storage

/** receive reads an answer into its turn. fresh is the turn without what it has so far. */
async function receive(id: string, turn: Turn, fresh: Turn, sent: number, chunks: (r: Reader) => AsyncGenerator<Numbered>): Promise<void> {
  const live: Running = { turn: signal(turn), conversation: id, abort: new AbortController(), waiting: signal(false) };
  running.value = new Map(running.value).set(turn.id, live);
  spoken.value = "The model answers.";
  let now = fresh;
  let drawn = 0;
  let stored = performance.now();
  const draw = () => {
    drawn ||= requestAnimationFrame(() => {
      drawn = 0;
      live.turn.value = now;
    });
  };
  const place = (t: Turn) => {
    const c = conversations.value.find((o) => o.id === id);
    if (c && turnOf(c, t.id)) change({ ...replace(c, t), updated: Date.now() });
  };
  const reader: Reader = {
    signal: live.abort.signal,
    resumable: (stream) => {
      now = { ...now, stream };
      place(now);
    },
    waiting: (on) => {
      live.waiting.value = on;
      if (on) spoken.value = "The connection is lost. Reconnecting.";
    },
  };
  try {
    for await (const numbered of chunks(reader)) {
      const begins = now.stats?.firstToken === undefined;
      now = collect(now, numbered, sent, performance.now());
      draw();
      if (performance.now() - stored > storeEvery || (begins && now.stats?.firstToken !== undefined)) {
        stored = performance.now();
        place(now);
      }
    }
    now = { ...now, state: undefined };
    spoken.value = `The answer is complete. ${describe(now.stats ?? {}).join(", ")}`;
  } catch (error) {
    now = now.content || now.reasoning || now.calls ? now : { ...turn, stream: now.stream };
    if (live.abort.signal.aborted) {
      now = { ...now, state: "stopped" };
      spoken.value = "Stopped.";
    } else {
      now = { ...now, state: "failed", error: reason(error) };
      if (error instanceof Refusal && error.status === 401) needsKey.value = true;
    }
  } finally {
    cancelAnimationFrame(drawn);
    delete now.stream;
    batch(() => {
      const map = new Map(running.value);
      map.delete(turn.id);
      running.value = map;
      place(now);
    });
  }
}

const retryAfter = 3000; // ms between requests for the models while there is none

/** loadModels reads the list of models, until there is one. */
export async function loadModels(): Promise<void> {
  try {
    const response = await keyed("/v1/models");
    if (response.status === 401) {
      batch(() => {
        server.value = "key";
        needsKey.value = true;
      });
      return;
    }
    if (!response.ok) throw await refusal(response);
    const { data } = (await response.json()) as { data: Model[] };
    batch(() => {
      models.value = data;
      if (!data.some((m) => m.id === model.value)) model.value = data[0]?.id ?? "";
      server.value = data.length > 0 ? "ready" : "loading";
      needsKey.value = false;
    });
    if (data.length > 0) return;
  } catch {
    server.value = "away";
  }
  setTimeout(loadModels, retryAfter);
}

export function chooseModel(id: string): void {
  model.value = id;
  write("local", "millrace.model", id);
}

export const keyIsWrong = computed(() => server.value === "key" && key.value !== "");
