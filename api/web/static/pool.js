// Computes what the page of the KV cache shows. It must not know the document.

// states returns the states of slabs, in the order of the bar, with their numbers.
export function states(stats) {
  return [
    { name: "held", label: "held by one sequence", slabs: stats.used - stats.shared },
    { name: "shared", label: "shared by several", slabs: stats.shared },
    { name: "cached", label: "cached for their tokens alone", slabs: stats.cached },
    { name: "free", label: "free", slabs: stats.slabs - stats.used - stats.cached },
  ];
}

// cells returns the slabs of each cell of the map by state.
export function cells(map, slabs) {
  return map.held.map((held, i) => {
    const all = Math.min(map.cell_slabs, slabs - i * map.cell_slabs);
    const [shared, cached] = [map.shared[i], map.cached[i]];
    return { all, held, shared, cached, free: all - held - shared - cached };
  });
}

export const percent = (part, all) => (all ? `${((100 * part) / all).toFixed(1)}%` : "–");

// span is how long the page keeps samples, in ms.
export const span = 5 * 60 * 1000;

// remember adds a sample and drops those older than span.
export function remember(samples, now, stats) {
  samples.push({ at: now, used: stats.used / stats.slabs, full: (stats.used + stats.cached) / stats.slabs });
  while (samples[0].at < now - span) samples.shift();
}

// hitRatio returns the ratio since the start, and since an earlier sample of prefix, as text.
export function hitRatio(prefix, before) {
  return {
    all: percent(prefix.hits, prefix.tokens),
    recent: percent(prefix.hits - before.hits, prefix.tokens - before.tokens),
  };
}
