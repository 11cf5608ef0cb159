import { keepKey, keyed, storedKey } from "/web/key.js";
import { cells, hitRatio, percent, remember, span, states } from "/web/pool.js";

const $ = (id) => document.getElementById(id);
const interval = 1000; // between two requests, in ms
const samples = []; // of the use, while the page is open
const prefixes = []; // of the prefix cache's counters, in the last minute
let state = null; // the last one
let paused = false;
let timer = 0;

function element(tag, text, className = "") {
  const e = document.createElement(tag);
  e.textContent = text;
  e.className = className;
  return e;
}

// problem shows why there is no state, and the form for the key if one is needed.
function problem(text, needsKey = false) {
  $("problem").textContent = text;
  $("problem").hidden = text === "";
  if (needsKey && $("access").hidden) {
    $("access").hidden = false;
    $("key").focus();
  }
  if (text === "") $("access").hidden = true;
}

async function update() {
  clearTimeout(timer);
  if (paused || document.hidden) return;
  try {
    const response = await keyed("/debug/kv?brief=1", { headers: { Accept: "application/json" } });
    if (response.status === 401) {
      problem(storedKey() ? "The server does not accept this API key." : "The server requires an API key.", true);
      return;
    }
    if (!response.ok) throw new Error(await reason(response));
    state = await response.json();
    const now = Date.now();
    remember(samples, now, state.stats);
    prefixes.push(state.prefix);
    if (prefixes.length > 60) prefixes.shift();
    problem("");
    show();
  } catch (error) {
    problem(error instanceof TypeError ? "The server does not answer." : error.message);
  }
  clearTimeout(timer);
  timer = setTimeout(update, interval);
}

async function reason(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text.trim() || `The server answered ${response.status}.`;
  }
}

function show() {
  const { stats } = state;
  $("state").hidden = false;
  const ratio = hitRatio(state.prefix, prefixes[0]);
  const figures = {
    "Used or promised": percent(stats.used + stats.promised, stats.slabs),
    Slabs: stats.slabs.toLocaleString(),
    "Prefix cache hits, last minute": ratio.recent,
    "Prefix cache hits, all": ratio.all,
    "Sequences in memory": stats.regions.toLocaleString(),
    "Sequences waiting": state.waiting.toLocaleString(),
    "Paused, their growth was denied": stats.denied.toLocaleString(),
    ...(stats.slots > 0 && { "Slabs in the spill tier": `${stats.spilled.toLocaleString()} of ${stats.slots.toLocaleString()}` }),
  };
  $("figures").replaceChildren(...Object.entries(figures).map(([name, value]) => {
    const box = document.createElement("div");
    box.append(element("dt", name), element("dd", value));
    return box;
  }));
  showBar(stats);
  showTables();
  draw();
}

function showBar(stats) {
  const list = states(stats);
  $("bar").replaceChildren(...list.map((s) => {
    const part = element("div", "", s.name);
    part.style.flex = `${s.slabs} 0 0`;
    return part;
  }));
  const words = list.map((s) => `${s.slabs.toLocaleString()} ${s.label}`);
  $("bar").setAttribute("aria-label", words.join(", "));
  const promised = `${stats.promised.toLocaleString()} of the free and cached ones are promised to sequences in memory`;
  const needed = `${stats.needed.toLocaleString()} more are needed if all of these run to their declared ends`;
  $("legend").replaceChildren(...list.map((s, i) => element("li", words[i], s.name)), element("li", promised, "promised"), element("li", needed, "needed"));
}

function table(id, head, rows) {
  const line = (tag, values) => {
    const tr = document.createElement("tr");
    tr.append(...values.map((v) => element(tag, typeof v === "number" ? v.toLocaleString() : v)));
    return tr;
  };
  $(id).replaceChildren(line("th", head), ...rows.map((values) => line("td", values)));
}

function showTables() {
  table("tenants", ["Tenant", "Sequences", "Leased slabs", "Reserved slabs"],
    state.tenants.map((t) => [t.tenant || "without a key", t.sequences, t.leased_slabs, t.reserved_slabs]));
  table("sequences", ["Sequence", "Tenant", "Prompt", "Computed", "Generated", "Reserved tokens", "Declared tokens", "Leased slabs",
    "Reserved slabs", "Shared slabs", "Spilled slabs"],
    state.regions.map((r) => [r.sequence, r.tenant || "–", r.prompt_tokens, r.computed_tokens, r.generated_tokens, r.reserved_tokens,
      r.declared_tokens, r.leased_slabs, r.reserved_slabs, r.shared_slabs, r.spilled_slabs]));
  const hidden = state.stats.regions - state.regions.length;
  $("sequences-note").textContent = hidden > 0 ? `The largest ones; ${hidden.toLocaleString()} more are not shown.` : "";
}

// canvas returns a context of the size of its element, in CSS pixels, and a function that returns the value of a CSS variable.
function canvas(id, height) {
  const c = $(id);
  const scale = window.devicePixelRatio || 1;
  const width = c.clientWidth;
  c.width = Math.round(width * scale);
  c.height = Math.round(height * scale);
  const context = c.getContext("2d");
  context.scale(scale, scale);
  const style = getComputedStyle(c);
  return { c, context, width, color: (name) => style.getPropertyValue(`--${name}`) };
}

function draw() {
  if (!state) return;
  drawMap();
  drawTime();
}

const cellSize = 14; // CSS pixels, with the gap

function drawMap() {
  const list = cells(state.map, state.stats.slabs);
  const columns = Math.max(1, Math.floor($("map").clientWidth / cellSize));
  const height = Math.ceil(list.length / columns) * cellSize;
  $("map").style.height = `${height}px`;
  const { context, color } = canvas("map", height);
  const side = cellSize - 2;
  list.forEach((cell, i) => {
    let y = Math.floor(i / columns) * cellSize;
    for (const name of ["held", "shared", "cached", "free"]) {
      const h = (side * cell[name]) / cell.all;
      context.fillStyle = color(name);
      context.fillRect((i % columns) * cellSize, y, side, h);
      y += h;
    }
  });
  const n = state.map.cell_slabs;
  $("map-note").textContent = `${list.length.toLocaleString()} cells of ${n === 1 ? "one slab" : `${n.toLocaleString()} slabs`}, by number. ` +
    "A cell is divided by the states of its slabs.";
}

function drawTime() {
  const height = $("time").clientHeight;
  const { context, width, color } = canvas("time", height);
  const end = samples.at(-1).at;
  const x = (s) => width - ((end - s.at) / span) * width;
  const area = (value, name) => {
    context.fillStyle = color(name);
    context.beginPath();
    context.moveTo(x(samples[0]), height);
    for (const s of samples) context.lineTo(x(s), height * (1 - value(s)));
    context.lineTo(width, height);
    context.fill();
  };
  area((s) => s.full, "cached");
  area((s) => s.used, "held");
  const last = samples.at(-1);
  $("time-note").textContent = `Held by sequences: ${percent(last.used, 1)} of the pool now; cached: ${percent(last.full - last.used, 1)}. ` +
    "The page collects the values while it is open.";
}

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  $("pause").textContent = paused ? "Resume" : "Pause";
  update();
});
$("access").addEventListener("submit", (event) => {
  event.preventDefault();
  keepKey($("key").value);
  update();
});
document.addEventListener("visibilitychange", update);
window.addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
update();
