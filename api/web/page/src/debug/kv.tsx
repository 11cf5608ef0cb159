// The KV cache: slabs by state, a map of the pool, the use over time, tenants and sequences.
import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { theme } from "../theme";
import { Scroll } from "./pipeline";
import { cells, hitRatio, memory, percent, span, states, type KVState, type KVStats, type Sample } from "./pool";
import { kv, pipeline, prefixes, samples } from "./state";
import { bySequence, shortId } from "./timeline";

export function KVView() {
  const state = kv.value;
  if (!state) return null;
  const requests = bySequence(pipeline.value?.requests ?? []);
  return (
    <>
      <Figures state={state} />
      <section aria-labelledby="slabs-title">
        <h2 id="slabs-title">Slabs by state</h2>
        <Slabs stats={state.stats} />
        <Words />
      </section>
      <section aria-labelledby="map-title">
        <h2 id="map-title">Map of the pool</h2>
        <PoolMap state={state} />
      </section>
      <section aria-labelledby="time-title">
        <h2 id="time-title">Use over the last five minutes</h2>
        <UseOverTime />
      </section>
      <section aria-labelledby="tenants-title">
        <h2 id="tenants-title">Tenants</h2>
        <Table label="Tenants" head={["Tenant", "Sequences", "Leased slabs", "Reserved slabs"]}
          rows={state.tenants.map((t) => [t.tenant || "without a key", t.sequences, t.leased_slabs, t.reserved_slabs])} />
      </section>
      <section aria-labelledby="sequences-title">
        <h2 id="sequences-title">Sequences</h2>
        <Table label="Sequences"
          head={["Sequence", "Request", "Tenant", "Prompt", "Computed", "Generated", "Reserved tokens", "Declared tokens", "Leased slabs", "Reserved slabs", "Shared slabs", "Spilled slabs"]}
          rows={state.regions.map((r) => [r.sequence, shortId(requests.get(r.sequence) ?? "–"), r.tenant || "–", r.prompt_tokens, r.computed_tokens, r.generated_tokens, r.reserved_tokens,
            r.declared_tokens, r.leased_slabs, r.reserved_slabs, r.shared_slabs, r.spilled_slabs])} />
        {state.stats.regions > state.regions.length &&
          <p class="note">The largest ones; {(state.stats.regions - state.regions.length).toLocaleString()} more are not shown.</p>}
      </section>
    </>
  );
}

const words: [string, string][] = [
  ["Slab", "a piece of the KV memory: keys and values of some consecutive tokens, in all layers"],
  ["Leased", "slabs that a sequence has now. Several sequences share a slab if their prompts begin alike"],
  ["Promised", "free or cached slabs that sequences in memory may still lease. No other sequence gets them"],
  ["Reserved", "leased or promised"],
  ["Declared", "the most tokens that a sequence can have: its prompt and its token limit"],
  ["Cached", "slabs that no sequence has. Their tokens need no computation if a prompt begins with them; they are reused when memory is short"],
  ["Spilled", "slabs of a waiting sequence that are in another tier until it continues"],
];

/** Words explains what the page calls its parts. */
function Words() {
  return (
    <details class="words">
      <summary>What the words mean</summary>
      <dl>{words.map(([name, text]) => <div key={name}><dt>{name}</dt><dd>{text}</dd></div>)}</dl>
    </details>
  );
}

function Figures({ state }: { state: KVState }) {
  const { stats } = state;
  const ratio = hitRatio(state.prefix, prefixes.value[0] ?? state.prefix);
  const { bytes } = state;
  const figures: [string, string][] = [
    ["Memory used", memory(bytes.used)],
    ["Memory of cached prefixes", memory(bytes.cached)],
    ["Memory committed", memory(bytes.committed)],
    ["Memory reserved, at most", memory(bytes.reserved)],
    ["Used or promised", percent(stats.used + stats.promised, stats.slabs)],
    ["Slabs", stats.slabs.toLocaleString()],
    ["Prefix hits, last minute", ratio.recent],
    ["Prefix hits, all", ratio.all],
    ["Sequences in memory", stats.regions.toLocaleString()],
    ["Sequences waiting", state.waiting.toLocaleString()],
    ["Paused, growth denied", stats.denied.toLocaleString()],
  ];
  if (stats.slots > 0) figures.push(["Slabs in the spill tier", `${stats.spilled.toLocaleString()} of ${stats.slots.toLocaleString()}`]);
  return <dl class="figures">{figures.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>;
}

/** Slabs is a bar of the slabs by state, with its legend. */
export function Slabs({ stats }: { stats: KVStats }) {
  const list = states(stats);
  const words = list.map((s) => `${s.slabs.toLocaleString()} ${s.label}`);
  return (
    <>
      <div class="bar" role="img" aria-label={words.join(", ")}>
        {list.map((s) => s.slabs > 0 && <div key={s.name} class={s.name} style={{ flex: `${s.slabs} 0 0` }} />)}
      </div>
      <ul class="legend">
        {list.map((s, i) => <li key={s.name} class={s.name}>{words[i]}</li>)}
        <li class="plain">{stats.promised.toLocaleString()} of the free and cached ones are promised to sequences in memory</li>
        <li class="plain">{stats.needed.toLocaleString()} more are needed if all of these run to their declared ends</li>
      </ul>
    </>
  );
}

const cellSize = 14; // CSS pixels, with the gap

function PoolMap({ state }: { state: KVState }) {
  const at = useRef<HTMLCanvasElement>(null);
  const width = useSignal(0);
  const scheme = useSignal(0); // times that the colors of the system changed
  const list = cells(state.map, state.stats.slabs);
  useEffect(() => {
    const sizes = new ResizeObserver(([e]) => (width.value = Math.floor(e!.contentRect.width)));
    sizes.observe(at.current!.parentElement!);
    const media = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => scheme.value++;
    media.addEventListener("change", changed);
    return () => {
      sizes.disconnect();
      media.removeEventListener("change", changed);
    };
  }, []);
  const columns = Math.max(1, Math.floor(width.value / cellSize));
  const height = Math.ceil(list.length / columns) * cellSize;
  useEffect(() => {
    const c = at.current!;
    const scale = devicePixelRatio || 1;
    [c.width, c.height] = [Math.round(columns * cellSize * scale), Math.round(height * scale)];
    const context = c.getContext("2d")!;
    context.scale(scale, scale);
    const side = cellSize - 2;
    const names = ["held", "shared", "cached", "free", "absent"] as const;
    const colors = names.map((name) => color(c, name));
    list.forEach((cell, i) => {
      let y = Math.floor(i / columns) * cellSize;
      names.forEach((name, k) => {
        const h = (side * cell[name]) / cell.all;
        context.fillStyle = colors[k]!;
        context.fillRect((i % columns) * cellSize, y, side, h);
        y += h;
      });
    });
  }, [state, columns, height, theme.value, scheme.value]);
  const n = state.map.cell_slabs;
  return (
    <>
      <canvas ref={at} role="img" aria-labelledby="map-note" style={{ width: `${columns * cellSize}px`, height: `${height}px` }} />
      <p id="map-note" class="note">
        {list.length.toLocaleString()} cells of {n === 1 ? "one slab" : `${n.toLocaleString()} slabs`}, by number. A cell is divided by the states of its slabs.
      </p>
    </>
  );
}

/** color returns a color of the style sheet as a canvas takes it: light-dark() needs an element. */
function color(c: HTMLCanvasElement, name: string): string {
  c.style.color = `var(--${name})`;
  return getComputedStyle(c).color;
}

function UseOverTime() {
  const list = samples.value;
  const last = list.at(-1);
  if (!last) return null;
  const [w, h] = [600, 140];
  const x = (at: number) => (w - ((last.at - at) / span) * w).toFixed(1);
  const area = (share: (s: Sample) => number) =>
    `${x(list[0]!.at)},${h} ${list.map((s) => `${x(s.at)},${(h * (1 - share(s))).toFixed(1)}`).join(" ")} ${w},${h}`;
  return (
    <>
      <svg class="use" viewBox={`0 0 ${w} ${h}`} preserveAspectRatio="none" role="img" aria-labelledby="time-note">
        <polygon class="cached" points={area((s) => s.full)} />
        <polygon class="held" points={area((s) => s.used)} />
      </svg>
      <p id="time-note" class="note">
        Held by sequences: {percent(last.used, 1)} of the pool now; cached: {percent(last.full - last.used, 1)}. The page collects the values while it is open.
      </p>
    </>
  );
}

function Table({ label, head, rows }: { label: string; head: string[]; rows: (string | number)[][] }) {
  if (rows.length === 0) return <p class="note">None.</p>;
  return (
    <Scroll label={label}>
      <table>
        <thead><tr>{head.map((h) => <th key={h} scope="col">{h}</th>)}</tr></thead>
        <tbody>
          {rows.map(([name, ...values]) => (
            <tr key={name}><th scope="row">{name}</th>{values.map((v, i) => <td key={i}>{typeof v === "number" ? v.toLocaleString() : v}</td>)}</tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}
