// What a server says about a model, from the answers that it has. All functions are pure.

export interface Tags {
  models: { name: string; size: number; details: { family?: string; parameter_size?: string; quantization_level?: string } }[];
}

export interface Nodes {
  node: string;
  nodes: { node: string; model: string; worker?: { backend: string; weights: string } }[];
}

export interface KV {
  bytes: { reserved: number; used: number; cached: number };
}

/** Facts are those that the page shows. "" and undefined: the server does not say. */
export interface Facts {
  architecture: string;
  parameters: string;
  weights: string; // their type
  bytes?: number; // of the weights
  context?: number; // tokens
  workers: string;
  kv?: { used: number; cached: number; all: number }; // bytes of this process
}

/** facts joins what the server has about a model. A part may be missing. */
export function facts(model: { id: string; max_model_len?: number }, tags?: Tags, nodes?: Nodes, kv?: KV): Facts {
  const tag = tags?.models?.find((m) => m.name === model.id || m.name === `${model.id}:latest`);
  const workers = (nodes?.nodes ?? []).flatMap((n) => (n.worker ? [n.worker] : []));
  return {
    architecture: tag?.details.family ?? "",
    parameters: tag?.details.parameter_size ?? "",
    weights: [...new Set(workers.map((w) => w.weights).filter(Boolean))].join(", ") || (tag?.details.quantization_level ?? "").toLowerCase(),
    bytes: tag?.size || undefined,
    context: model.max_model_len,
    workers: places(workers.map((w) => w.backend)),
    kv: kv && { used: kv.bytes.used, cached: kv.bytes.cached, all: kv.bytes.reserved },
  };
}

/** places counts the devices by name: "cpu", or "2 × cpu, cuda". */
function places(names: string[]): string {
  const count = new Map<string, number>();
  for (const n of names) count.set(n, (count.get(n) ?? 0) + 1);
  return [...count].map(([n, k]) => (k > 1 ? `${k} × ${n}` : n)).join(", ");
}

/** Use is the part of a context that a conversation takes. */
export interface Use {
  tokens: number;
  of: number; // the model's context
  share: number; // 0 to 1
}

/** use returns how much of a context tokens take; undefined if one of them is not known. */
export function use(tokens: number | undefined, context: number | undefined): Use | undefined {
  if (!tokens || !context) return undefined;
  return { tokens, of: context, share: Math.min(1, tokens / context) };
}
