// Requests the state of the process once a second, while the page is visible.
import { batch, signal } from "@preact/signals";
import { key, keyed, reason, refusal } from "../key";
import { histogram, parse, since, sum, type Histogram } from "./prometheus";
import { remember, type KVState, type Sample } from "./pool";
import type { Request } from "./timeline";

export interface Step {
  number: number;
  at: string;
  took: number; // ns
  sequences: number;
  decode_rows: number;
  draft_rows: number;
  prompt_rows: number;
}

export interface Node {
  node: string;
  roles: string[];
  model: string;
  started: string;
  draining: boolean;
  requests: number;
  tokenize: number;
  detok: number;
  worker?: {
    backend: string;
    weights: string;
    class: string;
    down: boolean;
    capacity: number;
    running: number;
    waiting: number;
    slabs: number;
    free_slabs: number;
    steps: number;
    generated: number;
    in_step: number;
  };
}

export interface Pipeline {
  now: string;
  node: string;
  steps: Step[];
  requests: Request[];
  nodes: Node[];
}

/** Stage is one pool of the pipeline in the last seconds. */
export interface Stage {
  depth: number;
  depths: number[]; // of all samples
  recent: Histogram; // service times of the last seconds, in seconds
  perSecond: number;
}

/** Reading is what the page keeps of /metrics. */
interface Reading {
  at: number; // ms
  depth: Record<string, number>;
  service: Record<string, Histogram>;
  step: Histogram;
  running: number;
  waiting: number;
  generated: number;
}

export const stageNames = ["tokenize", "compute", "detok"] as const;

export const pipeline = signal<Pipeline>();
export const kv = signal<KVState>();
export const samples = signal<Sample[]>([]);
export const prefixes = signal<KVState["prefix"][]>([]); // of the last minute
export const readings = signal<Reading[]>([]);
export const problem = signal("");
export const needsKey = signal(false);
export const paused = signal(false);

const every = 1000; // ms
const keptReadings = 120;
const window = 10; // readings that "in the last seconds" means
let timer = 0;

/** stage returns a stage from the readings. */
export function stage(name: string, list: Reading[]): Stage {
  const now = list.at(-1)!;
  const before = list.at(-1 - window) ?? list[0]!;
  const recent = since(now.service[name]!, before === now ? undefined : before.service[name]);
  const time = (now.at - before.at) / 1000;
  return { depth: now.depth[name]!, depths: list.map((r) => r.depth[name]!), recent, perSecond: time > 0 ? recent.count / time : 0 };
}

/** steps returns the times of the steps and the tokens per second in the last seconds. */
export function lately(list: Reading[]): { step: Histogram; tokens: number; steps: number } {
  const now = list.at(-1)!;
  const before = list.at(-1 - window) ?? list[0]!;
  const time = (now.at - before.at) / 1000;
  const step = since(now.step, before === now ? undefined : before.step);
  const perSecond = (n: number) => (time > 0 ? Math.max(0, n) / time : 0);
  return { step, tokens: perSecond(now.generated - before.generated), steps: before === now ? 0 : perSecond(step.count) };
}

/** watch requests the state until the page is closed. */
export function watch(wanted: () => "pipeline" | "kv"): void {
  const update = async () => {
    clearTimeout(timer);
    if (paused.value || document.hidden) return;
    await request(wanted());
    clearTimeout(timer);
    timer = globalThis.setTimeout(update, every) as unknown as number;
  };
  document.addEventListener("visibilitychange", update);
  paused.subscribe(update);
  key.subscribe(update);
}

async function request(what: "pipeline" | "kv"): Promise<void> {
  try {
    const json = { headers: { Accept: "application/json" } };
    const first = await keyed("/debug/pipeline?brief=1", json);
    if (first.status === 401) {
      batch(() => {
        problem.value = key.value ? "The server does not accept this API key." : "The server requires an API key.";
        needsKey.value = true;
      });
      return;
    }
    if (!first.ok) throw await refusal(first);
    const p = (await first.json()) as Pipeline;
    // A process without a worker answers with an error, and the browser writes it to the console.
    const computes = p.nodes.some((n) => n.node === p.node && n.worker);
    if (what === "kv" && !computes) throw new Error("This process has no KV memory: it does not compute.");
    const [slabs, metrics] = await Promise.all([
      computes ? keyed("/debug/kv?brief=1", json) : undefined,
      what === "pipeline" ? keyed("/metrics") : undefined,
    ]);
    if (what === "kv" && slabs && !slabs.ok) throw await refusal(slabs);
    const [k, text] = [slabs?.ok ? ((await slabs.json()) as KVState) : undefined, await metrics?.text()];
    batch(() => {
      const now = Date.now();
      pipeline.value = p;
      kv.value = k;
      if (k) {
        samples.value = remember(samples.value, now, k.stats);
        prefixes.value = [...prefixes.value, k.prefix].slice(-60);
      }
      if (text) readings.value = [...readings.value, reading(text, now)].slice(-keptReadings);
      problem.value = "";
      needsKey.value = false;
    });
  } catch (error) {
    problem.value = reason(error);
  }
}

function reading(text: string, at: number): Reading {
  const all = parse(text);
  const r: Reading = {
    at, depth: {}, service: {},
    step: histogram(all, "millrace_step_seconds"),
    running: sum(all, "millrace_num_requests_running"),
    waiting: sum(all, "millrace_num_requests_waiting"),
    generated: sum(all, "millrace_generation_tokens_total"),
  };
  for (const name of stageNames) {
    r.depth[name] = sum(all, "millrace_stage_queue_depth", { stage: name });
    r.service[name] = histogram(all, "millrace_stage_service_seconds", { stage: name });
  }
  return r;
}
