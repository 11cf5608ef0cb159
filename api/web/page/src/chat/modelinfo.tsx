import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Icon } from "../icons";
import { keyed, reason } from "../key";
import { memory } from "../debug/pool";
import { facts, type Facts, type KV, type Nodes, type Tags } from "./facts";
import { model, models } from "./store";

const shown = signal<Facts | undefined>();
const wrong = signal("");
let requests = 0;

/** json requests what a server may not have: undefined if it has not. */
async function json<T>(path: string): Promise<T | undefined> {
  const response = await keyed(path, { headers: { Accept: "application/json" } });
  return response.ok ? ((await response.json()) as T) : undefined;
}

/** load requests what the server says about the chosen model. Only a process with a worker has KV memory. */
async function load(): Promise<void> {
  const mine = ++requests;
  try {
    const [tags, nodes] = await Promise.all([json<Tags>("/api/tags"), json<Nodes>("/debug/pipeline?brief=1")]);
    const local = nodes?.nodes.find((n) => n.node === nodes.node)?.worker;
    const kv = local ? await json<KV>("/debug/kv?brief=1") : undefined;
    if (mine !== requests) return;
    shown.value = facts(models.value.find((m) => m.id === model.value) ?? { id: model.value }, tags, nodes, kv);
    wrong.value = "";
  } catch (error) {
    if (mine === requests) wrong.value = reason(error);
  }
}

/** opened places the panel below its button, and fills it. */
function opened(panel: HTMLElement): void {
  const button = document.querySelector("[popovertarget=model-info]")!.getBoundingClientRect();
  panel.style.left = `${Math.max(8, Math.min(button.left, innerWidth - panel.offsetWidth - 8))}px`;
  void load();
}

/** ModelInfo shows what the model is, and in what memory it runs. */
export function ModelInfo() {
  const panel = useRef<HTMLDivElement>(null);
  useEffect(() => {
    shown.value = undefined;
    if (panel.current?.matches(":popover-open")) void load();
  }, [model.value]);
  const f = shown.value;
  const rows: [string, string][] = f
    ? [["Architecture", f.architecture], ["Parameters", f.parameters], ["Weights", f.weights], ["Size of the weights", f.bytes ? memory(f.bytes) : ""],
      ["Context", f.context ? `${f.context.toLocaleString()} tokens` : ""], ["Runs on", f.workers], ["KV memory", f.kv ? `${memory(f.kv.used)} used of ${memory(f.kv.all)}` : ""],
      ["Cached prefixes", f.kv ? memory(f.kv.cached) : ""]]
    : [];
  return (
    <>
      <button type="button" class="quiet" aria-label="About the model" title="About the model" popovertarget="model-info"><Icon name="info" /></button>
      <div id="model-info" ref={panel} class="model-info" popover="auto" role="group" aria-label={`About ${model.value}`} onToggle={(e) => e.newState === "open" && opened(e.currentTarget)}>
        <h2>{model.value}</h2>
        {wrong.value ? <p class="note" role="status">{wrong.value}</p> : (
          <dl>{rows.filter(([, v]) => v).map(([name, v]) => <div key={name}><dt>{name}</dt><dd>{v}</dd></div>)}</dl>
        )}
        {!f && !wrong.value && <p class="note">…</p>}
      </div>
    </>
  );
}
