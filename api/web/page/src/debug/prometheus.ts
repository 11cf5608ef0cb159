// Reads Prometheus' text form, and what the page shows of it. It must not know the document.

export interface Series {
  labels: Record<string, string>;
  value: number;
}

/** parse returns the series of a text by name. */
export function parse(text: string): Map<string, Series[]> {
  const all = new Map<string, Series[]>();
  for (const line of text.split("\n")) {
    const m = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!m) continue;
    const labels: Record<string, string> = {};
    for (const l of (m[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[l[1]!] = l[2]!.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
    const value = m[3] === "+Inf" ? Infinity : Number(m[3]);
    const list = all.get(m[1]!);
    if (list) list.push({ labels, value });
    else all.set(m[1]!, [{ labels, value }]);
  }
  return all;
}

/** sum adds the series of a name that have the labels. */
export function sum(all: Map<string, Series[]>, name: string, labels: Record<string, string> = {}): number {
  const wanted = Object.entries(labels);
  return (all.get(name) ?? []).filter((s) => wanted.every(([k, v]) => s.labels[k] === v)).reduce((n, s) => n + s.value, 0);
}

/** Histogram is the state of one since the start of the process. */
export interface Histogram {
  count: number;
  sum: number;
  buckets: { to: number; count: number }[]; // cumulative, by upper bound
}

export function histogram(all: Map<string, Series[]>, name: string, labels: Record<string, string> = {}): Histogram {
  const byBound = new Map<number, number>();
  const wanted = Object.entries(labels);
  for (const s of all.get(`${name}_bucket`) ?? []) {
    if (!wanted.every(([k, v]) => s.labels[k] === v)) continue;
    const to = s.labels.le === "+Inf" ? Infinity : Number(s.labels.le);
    byBound.set(to, (byBound.get(to) ?? 0) + s.value);
  }
  const buckets = [...byBound].map(([to, count]) => ({ to, count })).sort((a, b) => a.to - b.to);
  return { count: sum(all, `${name}_count`, labels), sum: sum(all, `${name}_sum`, labels), buckets };
}

/** since returns what a histogram got since an earlier state. */
export function since(now: Histogram, before: Histogram | undefined): Histogram {
  if (!before || before.count > now.count) return now; // the process has started again
  const had = new Map(before.buckets.map((b) => [b.to, b.count]));
  return {
    count: now.count - before.count,
    sum: now.sum - before.sum,
    buckets: now.buckets.map((b) => ({ to: b.to, count: b.count - (had.get(b.to) ?? 0) })),
  };
}

export const mean = (h: Histogram): number | undefined => (h.count > 0 ? h.sum / h.count : undefined);

/** quantile returns the bound under which a share of the values is, as Prometheus does: linear inside of a bucket. */
export function quantile(h: Histogram, share: number): number | undefined {
  if (h.count === 0) return undefined;
  const rank = share * h.count;
  let [from, below] = [0, 0];
  for (const b of h.buckets) {
    if (b.count >= rank) {
      if (b.to === Infinity) return from;
      return from + ((b.to - from) * (rank - below)) / Math.max(b.count - below, 1e-9);
    }
    [from, below] = [b.to, b.count];
  }
  return from;
}
