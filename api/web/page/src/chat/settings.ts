// Settings of a conversation. Only those that the user has changed are sent: for all others the model's recommendation applies.

export interface Settings {
  system: string;
  /** Values of number fields as text, by the name of the field. */
  numbers: Record<string, string>;
  stop: string; // one string on each line
  effort: string; // reasoning_effort; "": the model's own
  format: "text" | "json_object" | "json_schema";
  schema: string; // JSON text
  tools: string; // JSON text, "": none
}

export const noSettings: Settings = { system: "", numbers: {}, stop: "", effort: "", format: "text", schema: "", tools: "" };

export interface NumberField {
  name: string;
  label: string;
  hint: string;
  min?: number;
  max?: number;
  step: number;
}

export const numberFields: NumberField[] = [
  { name: "temperature", label: "Temperature", hint: "0 to 2", min: 0, max: 2, step: 0.05 },
  { name: "top_p", label: "Top p", hint: "above 0, to 1", min: 0, max: 1, step: 0.01 },
  { name: "top_k", label: "Top k", hint: "0 or -1: all", min: -1, step: 1 },
  { name: "min_p", label: "Min p", hint: "0 to 1", min: 0, max: 1, step: 0.01 },
  { name: "repetition_penalty", label: "Repetition penalty", hint: "1: none", min: 0, step: 0.05 },
  { name: "presence_penalty", label: "Presence penalty", hint: "-2 to 2", min: -2, max: 2, step: 0.1 },
  { name: "frequency_penalty", label: "Frequency penalty", hint: "-2 to 2", min: -2, max: 2, step: 0.1 },
  { name: "max_tokens", label: "Max tokens", hint: "as the context", min: 1, step: 1 },
  { name: "seed", label: "Seed", hint: "random", step: 1 },
];

export const efforts = ["none", "minimal", "low", "medium", "high", "xhigh"];

/** readSettings makes settings of a stored value, maybe one of another version of the page. */
export function readSettings(stored: unknown): Settings {
  const s: Settings = { ...noSettings, numbers: {} };
  if (typeof stored !== "object" || stored === null) return s;
  const from = stored as Record<string, unknown>;
  for (const name of ["system", "stop", "effort", "schema", "tools"] as const) {
    const value = from[name];
    if (typeof value === "string") s[name] = value;
  }
  if (from.format === "json_object" || from.format === "json_schema") s.format = from.format;
  for (const [name, value] of Object.entries((from.numbers as object) ?? {})) {
    if (typeof value === "string" && value) s.numbers[name] = value;
  }
  return s;
}

/** parsed reads JSON text of a field. It throws an Error that names the field. */
function parsed(field: string, text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${field}: expected JSON, found an error: ${(error as Error).message}`);
  }
}

/** fields are those of a request. It throws an Error if a text is not JSON. The server checks all other values. */
export function fields(s: Settings): Record<string, unknown> {
  const r: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(s.numbers)) if (value) r[name] = Number(value);
  const stop = s.stop.split("\n").filter((line) => line !== "");
  if (stop.length) r.stop = stop;
  if (s.effort) r.reasoning_effort = s.effort;
  if (s.format === "json_object") r.response_format = { type: "json_object" };
  if (s.format === "json_schema") {
    r.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema: parsed("JSON schema", s.schema) } };
  }
  if (s.tools.trim()) {
    const tools = parsed("Tools", s.tools);
    r.tools = (Array.isArray(tools) ? tools : [tools]).map((t) => (t?.type ? t : { type: "function", function: t }));
  }
  return r;
}

/** changed counts the settings that differ from the model's own. */
export function changed(s: Settings): number {
  return Object.values(s.numbers).filter(Boolean).length +
    [s.system.trim(), s.stop, s.effort, s.format === "text" ? "" : s.format, s.tools.trim()].filter(Boolean).length;
}

/** same reports whether two settings send the same fields. */
export function same(a: Settings, b: Settings): boolean {
  const values = (s: Settings) => [s.system, s.stop, s.effort, s.format, s.schema, s.tools, ...numberFields.map((f) => s.numbers[f.name] ?? "")];
  const other = values(b);
  return values(a).every((v, i) => v === other[i]);
}
