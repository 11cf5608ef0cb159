import { keepKey, keyed, storedKey } from "/web/key.js";
import { stream } from "/web/sse.js";
import { addTurn, fill, showError, scrollIfAtEnd } from "/web/view.js";

const $ = (id) => document.getElementById(id);
const conversation = []; // {role, content}: the messages for the model
let running = null; // the AbortController of the answer in progress

// Settings that the user has changed, kept between visits. Only these are sent. For all others the
// model's recommendation applies.
const values = $("values");
const kept = "millrace.settings";
let set = {}; // by name, as strings

function loadSettings() {
  try {
    set = JSON.parse(localStorage.getItem(kept)) ?? {};
  } catch {
    set = {}; // no storage, or not our data
  }
  for (const field of values.elements) {
    if (typeof set[field.name] === "string") field.value = set[field.name];
  }
  showOutputs();
}

function keepSettings() {
  showOutputs();
  try {
    localStorage.setItem(kept, JSON.stringify(set));
  } catch {
    // no storage: the settings last until the page is closed
  }
}

function showOutputs() {
  for (const out of values.querySelectorAll("output")) {
    const value = set[out.htmlFor.value];
    out.value = value ? Number(value).toFixed(2) : "the model's own";
  }
}

function request() {
  const system = (set.system ?? "").trim();
  const r = {
    model: $("model").value,
    messages: system ? [{ role: "system", content: system }, ...conversation] : [...conversation],
  };
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) {
    if (set[name]) r[name] = Number(set[name]);
  }
  return r;
}

// Statistics of an answer at the reader. The time counts from the question.
function describe(s) {
  const parts = [];
  if (s.tokens) parts.push(`${s.tokens} tokens`);
  if (s.tokens && s.last) parts.push(`${((s.tokens * 1000) / (s.last - s.start)).toFixed(1)} tokens/s`);
  if (s.first) parts.push(`first after ${Math.round(s.first - s.start)} ms`);
  if (s.end === "length") parts.push("cut at the token limit");
  if (s.end === "stopped") parts.push("stopped");
  return parts.join(" · ");
}

async function answer() {
  running = new AbortController();
  showRunning();
  const turn = addTurn($("log"), "assistant");
  turn.live(true);
  const s = { start: performance.now(), first: 0, last: 0, tokens: 0, end: "" };
  let text = "";
  try {
    for await (const chunk of stream(request(), running.signal)) {
      if (chunk.usage) s.tokens = chunk.usage.completion_tokens;
      const choice = chunk.choices[0];
      if (!choice) continue;
      if (choice.delta.content) {
        s.last = performance.now();
        s.first ||= s.last;
        s.tokens++; // an estimate: the last chunk gives the exact number
        text += choice.delta.content;
        turn.text(text);
      }
      if (choice.finish_reason) s.end = choice.finish_reason;
    }
  } catch (error) {
    if (error.name === "AbortError") s.end = "stopped";
    else showError(turn, error.message, () => retry(turn, text));
  }
  turn.live(false);
  turn.text(text);
  turn.stats(describe(s));
  if (text) conversation.push({ role: "assistant", content: text });
  running = null;
  showRunning();
  scrollIfAtEnd($("log"));
}

function retry(turn, text) {
  if (running) return;
  if (text) conversation.pop(); // the part that came before the error
  turn.remove();
  answer();
}

function send(text) {
  if (running || !text.trim()) return;
  $("empty").hidden = true;
  conversation.push({ role: "user", content: text });
  addTurn($("log"), "user").text(text);
  $("log").scrollTop = $("log").scrollHeight;
  answer();
}

function stop() {
  running?.abort();
}

function reset() {
  stop();
  conversation.length = 0;
  for (const turn of $("log").querySelectorAll(".turn")) turn.remove();
  $("empty").hidden = false;
  $("input").focus();
}

function showRunning() {
  $("send").hidden = running !== null;
  $("stop").hidden = running === null;
  $("reset").disabled = running !== null;
}

function showSettings(on) {
  $("settings").hidden = !on;
  $("toggle").setAttribute("aria-expanded", String(on));
}

async function loadModels() {
  const select = $("model");
  try {
    const response = await keyed("/v1/models");
    if (response.status === 401) {
      fill(select, ["API key needed"]);
      select.disabled = true;
      showSettings(true);
      $("key").focus();
      return;
    }
    const { data } = await response.json();
    fill(select, data.map((m) => m.id));
    select.disabled = data.length === 0;
  } catch {
    fill(select, ["server not reached"]);
    setTimeout(loadModels, 3000);
  }
}

function fit() {
  const input = $("input");
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) return;
  const text = $("input").value;
  $("input").value = "";
  fit();
  send(text);
});
$("input").addEventListener("input", fit);
$("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("composer").requestSubmit();
  }
});
$("stop").addEventListener("click", stop);
$("reset").addEventListener("click", reset);
$("toggle").addEventListener("click", () => showSettings($("settings").hidden));
$("key").addEventListener("change", (event) => {
  keepKey(event.target.value);
  loadModels();
});
$("access").addEventListener("submit", (event) => {
  event.preventDefault();
  $("key").blur(); // triggers the change event if the key is new
});
$("defaults").addEventListener("click", () => {
  values.reset();
  set = {};
  keepSettings();
});
values.addEventListener("input", (event) => {
  set[event.target.name] = event.target.value;
  keepSettings();
});
values.addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
  if (event.altKey && event.code === "KeyN" && !running) {
    event.preventDefault();
    reset();
  }
});
for (const idea of document.querySelectorAll(".idea")) {
  idea.addEventListener("click", () => send(idea.textContent));
}

$("key").value = storedKey();
loadSettings();
loadModels();
