import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { keyed } from "../key";
import { use } from "./facts";
import { fields } from "./settings";
import { busy, conversation, model, models, server } from "./store";
import { apiMessages, branch, taken, type Conversation } from "./tree";

const counted = signal<{ of: string; tokens: number }>(); // by the server, for a branch without an answer's usage

const nameOf = (c: Conversation) => `${c.id} ${c.leaf} ${c.updated} ${model.value}`;

/** count requests the number of tokens of the shown branch. */
async function count(c: Conversation, signal: AbortSignal): Promise<void> {
  try {
    const { tools } = fields(c.settings);
    const body = JSON.stringify({ model: model.value, messages: apiMessages(c.settings.system, branch(c)), ...(tools ? { tools } : {}) });
    const response = await keyed("/tokenize", { method: "POST", headers: { "Content-Type": "application/json" }, body, signal });
    if (response.ok) counted.value = { of: nameOf(c), tokens: (await response.json()).count };
  } catch {
    // not known: no meter is shown
  }
}

const nearlyFull = 0.9;

/** ContextMeter shows how much of the model's context the shown branch takes. */
export function ContextMeter() {
  const c = conversation.value;
  const known = c && taken(branch(c));
  const missing = c !== undefined && known === undefined && branch(c).length > 0 && !busy.value && server.value === "ready";
  useEffect(() => {
    if (!missing) return;
    const abort = new AbortController();
    void count(c, abort.signal);
    return () => abort.abort();
  }, [missing, c && nameOf(c)]);
  const tokens = known ?? (c && counted.value?.of === nameOf(c) ? counted.value.tokens : undefined);
  const u = use(tokens, models.value.find((m) => m.id === model.value)?.max_model_len);
  if (!u) return null;
  const words = `${u.tokens.toLocaleString()} of ${u.of.toLocaleString()} tokens`;
  const full = u.share >= nearlyFull;
  return (
    <span class={full ? "context full" : "context"} title="What this conversation takes of the model's context">
      <span class="track" role="meter" aria-label="Context" aria-valuemin={0} aria-valuemax={u.of} aria-valuenow={Math.min(u.tokens, u.of)} aria-valuetext={words}>
        <span style={{ width: `${100 * u.share}%` }} />
      </span>
      {words}{full && ", nearly full"}
    </span>
  );
}
