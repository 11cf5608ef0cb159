// Computes what the page of the KV cache shows. It must not know the document.

export interface KVStats {
  slabs: number;
  committed: number;
  used: number;
  shared: number;
  cached: number;
  promised: number;
  needed: number;
  regions: number;
  denied: number;
  slots: number;
  spilled: number;
}

export interface KVMap {
  cell_slabs: number;
  held: number[];
  shared: number[];
  cached: number[];
  absent: number[];
}

export interface KVRegion {
  sequence: string;
  tenant: string;
  prompt_tokens: number;
  computed_tokens: number;
  generated_tokens: number;
  reserved_tokens: number;
  declared_tokens: number;
  leased_slabs: number;
  reserved_slabs: number;
  shared_slabs: number;
  spilled_slabs: number;
}

export interface KVState {
  stats: KVStats;
  bytes: { reserved: number; committed: number; used: number; cached: number };
  map: KVMap;
  prefix: { tokens: number; hits: number };
  waiting: number;
  tenants: { tenant: string; sequences: number; leased_slabs: number; reserved_slabs: number }[];
  regions: KVRegion[];
}

/** states returns the states of slabs, in the order of the bar, with their numbers. */
export function states(stats: KVStats) {
  return [
    { name: "held", label: "held by one sequence", slabs: stats.used - stats.shared },
    { name: "shared", label: "shared by several", slabs: stats.shared },
    { name: "cached", label: "cached for their tokens alone", slabs: stats.cached },
    { name: "free", label: "free", slabs: stats.committed - stats.used - stats.cached },
    { name: "absent", label: "without memory until they are needed", slabs: stats.slabs - stats.committed },
  ] as const;
}

/** cells returns the slabs of each cell of the map by state. */
export function cells(map: KVMap, slabs: number) {
  return map.held.map((held, i) => {
    const all = Math.min(map.cell_slabs, slabs - i * map.cell_slabs);
    const [shared, cached, absent] = [map.shared[i]!, map.cached[i]!, map.absent[i]!];
    return { all, held, shared, cached, free: all - held - shared - cached - absent, absent };
  });
}

/** memory returns a number of bytes as text. */
export function memory(bytes: number) {
  const [size, unit] = bytes >= 1e9 ? [1e9, "GB"] : [1e6, "MB"];
  return `${(bytes / size).toFixed(bytes < 100 * size ? 1 : 0)} ${unit}`;
}

export const percent = (part: number, all: number) => (all ? `${((100 * part) / all).toFixed(1)}%` : "–");

/** span is how long the page keeps samples, in ms. */
export const span = 5 * 60 * 1000;

export interface Sample {
  at: number; // ms
  used: number; // shares of the pool
  full: number; // with the cached slabs
}

/** remember returns the samples with one more, without those older than span. */
export function remember(samples: Sample[], now: number, stats: KVStats): Sample[] {
  const sample = { at: now, used: stats.used / stats.slabs, full: (stats.used + stats.cached) / stats.slabs };
  return [...samples, sample].filter((s) => s.at >= now - span);
}

/** hitRatio returns the ratio since the start, and since an earlier sample of prefix, as text. */
export function hitRatio(prefix: KVState["prefix"], before: KVState["prefix"]) {
  return { all: percent(prefix.hits, prefix.tokens), recent: percent(prefix.hits - before.hits, prefix.tokens - before.tokens) };
}
