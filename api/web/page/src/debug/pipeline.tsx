// The pipeline as it is now: its stages, the last steps, slabs, requests and nodes.
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { Slabs } from "./kv";
import { mean, quantile } from "./prometheus";
import { kv, lately, pipeline, readings, stage, type Node, type Pipeline, type Step } from "./state";
import { firstToken, rate, shortId, spans, stages as requestStages, type Request } from "./timeline";

/** duration puts seconds into words. */
export function duration(s: number | undefined): string {
  if (s === undefined) return "–";
  if (s < 1e-3) return `${Math.round(s * 1e6)} µs`;
  if (s < 1) return `${s < 0.01 ? (s * 1e3).toFixed(1) : Math.round(s * 1e3)} ms`;
  return s < 100 ? `${s.toFixed(s < 10 ? 2 : 1)} s` : `${Math.round(s)} s`;
}

const number = (n: number) => (n < 10 && n % 1 ? n.toFixed(1) : Math.round(n).toLocaleString());

export function PipelineView() {
  const p = pipeline.value;
  const list = readings.value;
  if (!p || list.length === 0) return null;
  return (
    <>
      <StagesSection />
      {p.steps.length > 0 && <StepsSection steps={p.steps} />}
      {kv.value && (
        <section aria-labelledby="slabs-title">
          <h2 id="slabs-title">KV slabs by state</h2>
          <Slabs stats={kv.value.stats} />
        </section>
      )}
      <RequestsSection p={p} />
      <NodesSection p={p} />
    </>
  );
}

function StagesSection() {
  const list = readings.value;
  const now = list.at(-1)!;
  const { step, tokens, steps } = lately(list);
  const [tokenize, compute, detok] = [stage("tokenize", list), stage("compute", list), stage("detok", list)];
  const texts = (s: typeof tokenize): [string, string][] => [
    ["in hand", number(s.depth)], ["service, mean", duration(mean(s.recent))], ["service, p95", duration(quantile(s.recent, 0.95))], ["messages/s", number(s.perSecond)],
  ];
  return (
    <section aria-labelledby="stages-title">
      <h2 id="stages-title">Stages <small>this process, last 10 seconds</small></h2>
      <ol class="stages">
        <StageCard name="Requests" values={list.map((r) => r.running + r.waiting)} rows={[["running", number(now.running)], ["waiting", number(now.waiting)]]} />
        <StageCard name="Tokenize" values={tokenize.depths} rows={texts(tokenize)} />
        <StageCard name="Compute" values={compute.depths} rows={[
          ["step, mean", duration(mean(step))], ["step, p95", duration(quantile(step, 0.95))], ["steps/s", number(steps)], ["tokens/s", number(tokens)],
          ["messages in hand", number(compute.depth)], ["message, mean", duration(mean(compute.recent))],
        ]} />
        <StageCard name="Detokenize" values={detok.depths} rows={texts(detok)} />
      </ol>
    </section>
  );
}

function StageCard({ name, values, rows }: { name: string; values: number[]; rows: [string, string][] }) {
  return (
    <li class="stage">
      <h3>{name}</h3>
      <Sparkline values={values} label={`${name}: queue depth in the last two minutes`} />
      <dl>{rows.map(([what, value]) => <div key={what}><dt>{what}</dt><dd>{value}</dd></div>)}</dl>
    </li>
  );
}

/** Sparkline draws values from the right, one for each second of two minutes. */
function Sparkline({ values, label }: { values: number[]; label: string }) {
  const most = Math.max(4, ...values);
  const [w, h] = [120, 30];
  const points = values.map((v, i) => `${w - (values.length - 1 - i)},${(h - 1 - (v / most) * (h - 3)).toFixed(1)}`);
  const from = w - (values.length - 1);
  return (
    <svg class="spark" viewBox={`0 0 ${w} ${h}`} preserveAspectRatio="none" role="img" aria-label={`${label}: now ${values.at(-1) ?? 0}, at most ${Math.max(0, ...values)}`}>
      <polygon points={`${from},${h} ${points.join(" ")} ${w},${h}`} />
      <polyline points={points.join(" ")} />
    </svg>
  );
}

const kinds = [
  { name: "prompt", label: "prompt rows", rows: (s: Step) => s.prompt_rows },
  { name: "decode", label: "decode rows", rows: (s: Step) => s.decode_rows - s.draft_rows },
  { name: "draft", label: "draft rows", rows: (s: Step) => s.draft_rows },
] as const;

function StepsSection({ steps }: { steps: Step[] }) {
  const shown = useSignal<Step | undefined>(undefined);
  const [slots, high, low] = [120, 90, 34]; // bars, and heights of rows and times
  const rows = (s: Step) => s.prompt_rows + s.decode_rows;
  const mostRows = Math.max(...steps.map(rows));
  const mostTime = Math.max(...steps.map((s) => s.took));
  const sum = (f: (s: Step) => number) => steps.reduce((n, s) => n + f(s), 0);
  const last = shown.value ?? steps.at(-1)!;
  const words = `The last ${steps.length} steps: ${number(sum(rows) / steps.length)} rows on average, at most ${mostRows}; ` +
    `${number((100 * sum((s) => s.prompt_rows)) / Math.max(1, sum(rows)))}% of the rows are of prompts; ${duration(sum((s) => s.took) / steps.length / 1e9)} on average.`;
  return (
    <section aria-labelledby="steps-title">
      <h2 id="steps-title">Last steps <small>above: rows, up to {mostRows.toLocaleString()}; below: time, up to {duration(mostTime / 1e9)}</small></h2>
      <svg class="steps" viewBox={`0 0 ${slots * 8} ${high + low + 6}`} preserveAspectRatio="none" role="img" aria-label={words} onPointerLeave={() => (shown.value = undefined)}>
        {steps.map((s, i) => {
          const x = (slots - steps.length + i) * 8;
          let y = high;
          const time = Math.max(1, (s.took / mostTime) * low);
          return (
            <g key={s.number} class={s === shown.value ? "on" : undefined} onPointerEnter={() => (shown.value = s)}>
              <rect class="slot" x={x} y={0} width={8} height={high + low + 6} />
              {kinds.map((k) => {
                const h = (k.rows(s) / Math.max(mostRows, 1)) * (high - 2);
                y -= h;
                return h > 0 && <rect key={k.name} class={k.name} x={x + 1} y={y} width={6} height={h} />;
              })}
              <rect class="time" x={x + 1} y={high + 6} width={6} height={time} />
            </g>
          );
        })}
      </svg>
      <ul class="legend">
        {kinds.map((k) => <li key={k.name} class={k.name}>{k.label}</li>)}
        <li class="time">time of the step</li>
        <li class="plain">
          Step {last.number.toLocaleString()}: {last.sequences} {last.sequences === 1 ? "sequence" : "sequences"}, {kinds.map((k) => `${k.rows(last)} ${k.name}`).join(", ")}, {duration(last.took / 1e9)}
        </li>
      </ul>
    </section>
  );
}

const windows = [10, 30, 60, 300]; // seconds
const mostRows = 40;

function RequestsSection({ p }: { p: Pipeline }) {
  const wide = useSignal(30);
  const now = Date.parse(p.now);
  const from = now - wide.value * 1000;
  const gateway = p.nodes.at(-1)?.roles.includes("gateway");
  const list = p.requests.filter((r) => !r.end || Date.parse(r.end) > from).slice(-mostRows).reverse();
  return (
    <section aria-labelledby="requests-title">
      <div class="head">
        <h2 id="requests-title">Requests</h2>
        <label>
          <span class="offscreen">Time that is shown</span>
          <select value={wide.value} onChange={(e) => (wide.value = Number(e.currentTarget.value))}>
            {windows.map((s) => <option key={s} value={s}>last {s < 100 ? `${s} s` : `${s / 60} min`}</option>)}
          </select>
        </label>
      </div>
      {!gateway ? <p class="note">This process is no gateway: it has no requests of its own.</p>
        : list.length === 0 ? <p class="note">No request in this time.</p>
        : (
          <Scroll label="Requests">
            <table class="requests">
              <thead>
                <tr><th scope="col">Request</th><th scope="col" class="lane">Timeline</th><th scope="col">Prompt</th><th scope="col">Tokens</th><th scope="col">First token</th><th scope="col">Tokens/s</th><th scope="col">End</th></tr>
              </thead>
              <tbody>{list.map((r) => <RequestRow key={r.id + r.arrival} r={r} from={from} now={now} />)}</tbody>
            </table>
          </Scroll>
        )}
      <ul class="legend">{requestStages.map((s) => <li key={s} class={s}>{s}</li>)}</ul>
    </section>
  );
}

function RequestRow({ r, from, now }: { r: Request; from: number; now: number }) {
  const at = (t: number) => Math.max(0, ((t - from) / (now - from)) * 100);
  const list = spans(r, now);
  const speed = rate(r, now);
  const words = list.map((s) => `${s.stage} ${duration((s.to - s.from) / 1000)}`).join(", ");
  return (
    <tr>
      <th scope="row" title={`${r.id}, ${r.model}${r.worker ? ` at ${r.worker}` : ""}${r.tenant ? `, ${r.tenant}` : ""}${r.sequences?.length ? `, KV sequence ${r.sequences.join(", ")}` : ""}`}>{shortId(r.id)}</th>
      <td class="lane" title={words}>
        <div role="img" aria-label={words}>
          {list.filter((s) => s.to >= from).map((s) => (
            <span key={s.stage} class={s.stage} style={{ left: `${at(s.from)}%`, width: `${Math.max(at(s.to) - at(s.from), 0.15)}%` }} />
          ))}
        </div>
      </td>
      <td>{r.prompt_tokens || "–"}{r.cached_tokens > 0 && <small> {r.cached_tokens} cached</small>}</td>
      <td>{r.generated_tokens}</td>
      <td>{duration(firstToken(r))}</td>
      <td>{speed === undefined ? "–" : number(speed)}</td>
      <td>{r.finish || "runs"}{r.moves > 0 && <small> moved {r.moves}×</small>}</td>
    </tr>
  );
}

function NodesSection({ p }: { p: Pipeline }) {
  return (
    <section aria-labelledby="nodes-title">
      <h2 id="nodes-title">Nodes</h2>
      <Scroll label="Nodes">
        <table>
          <thead>
            <tr>
              {["Node", "State", "Roles", "Model", "Kernels"].map((h) => <th key={h} scope="col" class="text">{h}</th>)}
              {["Requests", "Sequences", "Slabs", "In step", "Up"].map((h) => <th key={h} scope="col">{h}</th>)}
            </tr>
          </thead>
          <tbody>{p.nodes.map((n) => <NodeRow key={n.node} n={n} own={n.node === p.node} now={Date.parse(p.now)} />)}</tbody>
        </table>
      </Scroll>
    </section>
  );
}

function NodeRow({ n, own, now }: { n: Node; own: boolean; now: number }) {
  const w = n.worker;
  const state = w?.down ? "down" : n.draining ? "draining" : "serving";
  return (
    <tr>
      <th scope="row">{n.node}{own && <small> this one</small>}</th>
      <td class="text"><span class={`dot ${state === "serving" ? "ok" : state}`} aria-hidden="true" />{state}</td>
      <td class="text">{n.roles.join(", ")}</td>
      <td class="text">{n.model || "–"}</td>
      <td class="text">{w ? `${w.backend} ${w.weights}${w.class ? `, ${w.class}` : ""}` : "–"}</td>
      <td>{n.roles.includes("gateway") ? n.requests : "–"}</td>
      <td>{w ? `${w.running} + ${w.waiting} of ${w.capacity}` : "–"}</td>
      <td>{w ? `${(w.slabs - w.free_slabs).toLocaleString()} of ${w.slabs.toLocaleString()}` : "–"}</td>
      <td>{w ? duration(w.in_step / 1e9) : "–"}</td>
      <td>{age((now - Date.parse(n.started)) / 1000)}</td>
    </tr>
  );
}

/** age puts a long time into words. */
function age(s: number): string {
  if (s < 90) return `${Math.max(0, Math.round(s))} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  return s < 172_800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86_400)} d`;
}

/** Scroll is a table's place: the table scrolls, the page does not. */
export function Scroll({ label, children }: { label: string; children: ComponentChildren }) {
  return <div class="scroll" tabIndex={0} role="region" aria-label={`Table: ${label}`}>{children}</div>;
}
