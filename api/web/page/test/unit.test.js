// Tests of the modules that do not know the document.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { createServer } from "vite";

const vite = await createServer({
  configFile: false, root: new URL("..", import.meta.url).pathname, appType: "custom", logLevel: "error",
  server: { middlewareMode: true, ws: false, watch: null }, optimizeDeps: { noDiscovery: true },
});
after(() => vite.close());
const load = (name) => vite.ssrLoadModule(`/src/${name}.ts`);
const [sse, tree, settings, answer, exporting, importing, facts, attach, tokens, prometheus, pool, timeline] = await Promise.all(
  ["chat/sse", "chat/tree", "chat/settings", "chat/answer", "chat/export", "chat/import", "chat/facts", "chat/attach", "text/tokens", "debug/prometheus", "debug/pool", "debug/timeline"].map(load));

async function eventsOf(text, cut) {
  const bytes = new TextEncoder().encode(text);
  const body = new ReadableStream({
    start(c) {
      for (let i = 0; i < bytes.length; i += cut) c.enqueue(bytes.slice(i, i + cut));
      c.close();
    },
  });
  const list = [];
  for await (const m of sse.messages(body)) list.push(m);
  return list;
}

test("events are the same however the network cuts them", async () => {
  const text = ': ping\n\nid: 3\ndata: {"a":"é日"}\n\ndata: {"b":2}\n\nid: 5\ndata: [DONE]\n\n';
  const want = [{ id: "3", data: '{"a":"é日"}' }, { id: "", data: '{"b":2}' }, { id: "5", data: "[DONE]" }];
  for (const cut of [1, 2, 3, 7, 1000]) assert.deepEqual(await eventsOf(text, cut), want, `pieces of ${cut} bytes`);
});

const turn = (id, parent, role, content, more = {}) => ({ id, parent, role, created: 0, content, ...more });
const conversation = (turns, leaf) => ({ id: "c", title: "", created: 0, updated: 0, settings: { ...settings.noSettings }, turns, leaf });

test("an edited question and a regenerated answer are branches", () => {
  let c = conversation([], "");
  for (const t of [turn("q1", "", "user", "one"), turn("a1", "q1", "assistant", "A"), turn("q2", "a1", "user", "two"), turn("a2", "q2", "assistant", "B"),
    turn("a3", "q1", "assistant", "C"), turn("q3", "", "user", "other"), turn("a4", "q3", "assistant", "D")]) c = tree.append(c, t);
  const shown = (x) => tree.branch(x).map((t) => t.id);
  assert.deepEqual(shown(c), ["q3", "a4"]);
  assert.deepEqual(tree.siblings(c, tree.turnOf(c, "q3")).map((t) => t.id), ["q1", "q3"]);
  assert.deepEqual(tree.siblings(c, tree.turnOf(c, "a1")).map((t) => t.id), ["a1", "a3"]);
  assert.deepEqual(shown(tree.show(c, "q1")), ["q1", "a3"], "the newest branch of a question");
  assert.deepEqual(shown(tree.show(c, "a1")), ["q1", "a1", "q2", "a2"], "down to its last turn");
  assert.equal(tree.title(c), "one");
  assert.equal(tree.found(c, "OTHER"), "other");
  assert.equal(tree.found(c, "one"), "", "in the title");
  assert.equal(tree.found(c, "nowhere"), undefined);
});

test("a removed turn goes with all after it, and another variant is shown", () => {
  const c = conversation([turn("q1", "", "user", "one"), turn("a1", "q1", "assistant", "A"), turn("q2", "a1", "user", "two"), turn("a2", "q2", "assistant", "B"),
    turn("a3", "q1", "assistant", "C"), turn("q3", "a3", "user", "x")], "q3");
  const after = (id, leaf = c.leaf) => {
    const d = tree.without({ ...c, leaf }, tree.turnOf(c, id));
    return [d.turns.map((t) => t.id).join(" "), d.leaf];
  };
  assert.deepEqual(after("q3"), ["q1 a1 q2 a2 a3", "a3"]);
  assert.deepEqual(after("a3"), ["q1 a1 q2 a2", "a2"], "the earlier variant, to its end");
  assert.deepEqual(after("a1", "a2"), ["q1 a3 q3", "q3"], "the later variant");
  assert.deepEqual(after("a1"), ["q1 a3 q3", "q3"], "one that is not shown");
  assert.deepEqual(after("q1"), ["", ""]);
  assert.equal(tree.following(c, "a1").length, 3);
});

test("an answer that was cut is continued after its text, also when its stream is read again", () => {
  const cut = turn("a", "q", "assistant", "one two", { stats: { tokens: 2, finish: "length", firstToken: 5 } });
  assert.equal(tree.continuable(cut, "text"), true);
  assert.equal(tree.continuable({ ...cut, state: "stopped", stats: {} }, "text"), true);
  for (const [other, format] of [[cut, "json_schema"], [{ ...cut, content: "" }, "text"], [{ ...cut, calls: [{}] }, "text"], [{ ...cut, stats: { finish: "stop" } }, "text"],
    [{ ...cut, state: "running" }, "text"], [{ ...cut, state: "failed", stats: {} }, "text"]]) assert.equal(tree.continuable(other, format), false);
  const chunk = (delta) => ({ chunk: { id: "x", choices: [{ delta, finish_reason: null }] }, events: 1 });
  const read = (t) => answer.collect(t, chunk({ content: " three" }), 0, 9);
  const now = read(tree.continued(cut));
  assert.deepEqual([now.content, answer.total(now.stats)], ["one two three", 3]);
  assert.deepEqual([read(tree.rewound(now)).content, answer.total(read(tree.rewound(now)).stats)], ["one two three", 3], "after a reload");
  assert.deepEqual(read(tree.rewound(turn("b", "q", "assistant", "half"))).content, " three", "an answer that was not continued begins without text");
  assert.equal(answer.total(tree.continued(now).stats), 3, "a second time");
});

test("an export is imported as it was, and joined with what changed since", () => {
  const turns = [turn("q", "", "user", "one"), turn("a", "q", "assistant", "A", { reasoning: "hm", calls: [{ id: "k", name: "f", arguments: "{}" }], stats: { tokens: 3, finish: "length" } }),
    turn("t", "a", "tool", "7", { call: "k" }), turn("b", "t", "assistant", "", { state: "failed", error: "no" })];
  const c = { ...conversation(turns, "b"), title: "T", updated: 5 };
  assert.deepEqual(importing.conversationsOf(JSON.stringify([c])), [c]);
  assert.deepEqual(importing.conversationsOf(JSON.stringify(c)), [c], "one conversation");
  const running = importing.conversationsOf(JSON.stringify({ ...c, turns: [turn("q", "", "assistant", "x", { state: "running", stream: "s" })], leaf: "q" }))[0].turns[0];
  assert.deepEqual([running.state, running.stream], ["stopped", undefined], "its stream is not read again");

  const later = { ...tree.append(c, turn("q2", "b", "user", "later")), updated: 9 };
  const other = tree.append(c, turn("q3", "b", "user", "other"));
  assert.equal(importing.joined(later, c), later, "nothing is new");
  const both = importing.joined(later, { ...other, updated: 7 });
  assert.deepEqual([both.turns.map((t) => t.id), both.leaf], [["q", "a", "t", "b", "q2", "q3"], "q2"]);
  assert.deepEqual(importing.joined({ ...other, updated: 7 }, later), both, "in either order");
  for (const t of both.turns) assert.ok(t.parent === "" || tree.turnOf(both, t.parent), "no turn is lost");
});

test("a file that is no export is refused with what it has", () => {
  const c = conversation([turn("q", "", "user", "one")], "q");
  const cases = [
    ["{", /expected the JSON of an export, found an error/], ["7", /\[0\]: found 7, expected an object/], ["[null]", /\[0\]: found null/],
    [{ ...c, id: undefined }, /\[0\]\.id: found nothing, expected a text/], [{ ...c, id: "" }, /\.id: found ""/], [{ ...c, turns: {} }, /turns: found an object, expected a list/],
    [{ ...c, updated: "x" }, /updated: found "x", expected milliseconds/], [{ ...c, leaf: "z" }, /leaf: found "z", expected the id of a turn/],
    [{ ...c, turns: [turn("q", "z", "user", "one")] }, /turns\[0\]\.parent: found "z"/], [{ ...c, turns: [turn("q", "", "root", "one")] }, /role: found "root", expected user, assistant, tool/],
    [{ ...c, turns: [turn("q", "", "user", 7)] }, /content: found 7, expected a text/], [{ ...c, turns: [c.turns[0], c.turns[0]] }, /turns\[1\]\.id: found "q", expected an id of its own/],
    [{ ...c, turns: [turn("q", "", "assistant", "", { calls: [{ id: "k", name: "f" }] })] }, /calls\[0\]\.arguments: found nothing/],
    [{ ...c, turns: [turn("q", "", "assistant", "", { stats: null })] }, /stats: found null/],
    [[c, { messages: [] }], /\[1\]\.id: found nothing/],
  ];
  for (const [file, wrong] of cases) assert.throws(() => importing.conversationsOf(typeof file === "string" ? file : JSON.stringify(file)), wrong);
});

test("a context has the tokens of the last answer and its prompt, if they are known", () => {
  const q = turn("q", "", "user", "one");
  const a = turn("a", "q", "assistant", "A", { stats: { promptTokens: 12, tokens: 30, earlier: 7 } });
  assert.equal(tree.taken([q, a]), 42, "a continued answer's earlier tokens are of the prompt");
  for (const turns of [[], [q], [q, a, turn("r", "a", "user", "two")], [q, { ...a, edited: true }], [q, { ...a, state: "stopped" }], [q, { ...a, stats: {} }]]) assert.equal(tree.taken(turns), undefined);
  assert.deepEqual(facts.use(512, 2048), { tokens: 512, of: 2048, share: 0.25 });
  assert.equal(facts.use(5000, 2048).share, 1);
  assert.deepEqual([facts.use(undefined, 2048), facts.use(5, undefined)], [undefined, undefined]);
});

test("facts of a model are joined from what a server has", () => {
  const m = { id: "m", max_model_len: 2048 };
  const tags = { models: [{ name: "other", size: 1, details: {} }, { name: "m", size: 9, details: { family: "llama", parameter_size: "7B", quantization_level: "BF16" } }] };
  const worker = (backend, weights) => ({ node: "n", model: "m", worker: { backend, weights } });
  const kv = { bytes: { reserved: 4, used: 1, cached: 2 } };
  assert.deepEqual(facts.facts(m, tags, { node: "n", nodes: [worker("cpu", "int8"), { node: "g", model: "" }, worker("cpu", "bf16"), worker("sim", "bf16")] }, kv),
    { architecture: "llama", parameters: "7B", weights: "int8, bf16", bytes: 9, context: 2048, workers: "2 × cpu, sim", kv: { used: 1, cached: 2, all: 4 } });
  assert.deepEqual(facts.facts({ id: "x" }, tags), { architecture: "", parameters: "", weights: "", bytes: undefined, context: undefined, workers: "", kv: undefined });
  assert.equal(facts.facts(m, tags).weights, "bf16");
});

test("a text file is quoted whole, whatever it has, and other files are refused", () => {
  assert.equal(attach.fenced("a.py", "x = 1\n"), "a.py:\n\n```python\nx = 1\n```");
  assert.equal(attach.fenced("notes", "````\nb\n````"), "notes:\n\n`````\n````\nb\n````\n`````");
  assert.equal(attach.textOf("a", new TextEncoder().encode("é日\r\nb\rc")), "é日\nb\nc");
  assert.equal(attach.textOf("a", new Uint8Array()), "");
  for (const bytes of [[0x66, 0], [0xff, 0xfe], [0xc3]]) assert.throws(() => attach.textOf("a.bin", new Uint8Array(bytes)), /^Error: a\.bin: found bytes that are not UTF-8 text, expected a text file$/);
  assert.match(attach.refused("p.png", "image/png", 5), /p\.png: found image\/png, expected text/);
  assert.match(attach.refused("big.txt", "text/plain", 300 * 1024), /found 300 KiB, expected at most 256 KiB/);
  assert.equal(attach.refused("a.txt", "text/plain", 256 * 1024), "");
});

test("a request has the shown branch, with calls and their results, and without answers that failed", () => {
  const call = { id: "k", name: "f", arguments: '{"x":1}' };
  const turns = [turn("1", "", "user", "q"), turn("2", "1", "assistant", "", { calls: [call], reasoning: "hm" }), turn("3", "2", "tool", "7", { call: "k" }),
    turn("4", "3", "assistant", "", { state: "failed" }), turn("5", "4", "user", "again")];
  assert.deepEqual(tree.apiMessages(" be short ", turns), [
    { role: "system", content: "be short" }, { role: "user", content: "q" },
    { role: "assistant", content: null, tool_calls: [{ id: "k", type: "function", function: { name: "f", arguments: '{"x":1}' } }], reasoning_content: "hm" },
    { role: "tool", tool_call_id: "k", content: "7" }, { role: "user", content: "again" },
  ]);
  assert.deepEqual(tree.apiMessages(" ", []), []);
});

test("only settings that the user changed are sent", () => {
  assert.deepEqual(settings.fields(settings.noSettings), {});
  const s = { ...settings.noSettings, numbers: { temperature: "0", top_p: "" }, stop: "a\n\n b", effort: "low", format: "json_schema", schema: '{"type":"object"}',
    tools: '{"name":"f","parameters":{}}' };
  assert.deepEqual(settings.fields(s), {
    temperature: 0, stop: ["a", " b"], reasoning_effort: "low",
    response_format: { type: "json_schema", json_schema: { name: "answer", strict: true, schema: { type: "object" } } },
    tools: [{ type: "function", function: { name: "f", parameters: {} } }],
  });
  assert.throws(() => settings.fields({ ...s, schema: "{" }), /JSON schema: expected JSON/);
  assert.deepEqual(settings.readSettings({ system: 7, numbers: { seed: "4", top_k: 5 }, format: "xml" }), { ...settings.noSettings, numbers: { seed: "4" } });
});

test("an answer is collected from its pieces, with its times", () => {
  let t = turn("a", "q", "assistant", "");
  const add = (delta, events, now, more = {}) => {
    t = answer.collect(t, { chunk: { id: "x", choices: delta ? [{ delta, finish_reason: more.finish ?? null }] : [], usage: more.usage }, events }, 1000, now);
  };
  add({ role: "assistant" }, 0, 1100);
  assert.equal(t.stats.firstToken, undefined, "the role is no token");
  add({ reasoning_content: "hm" }, 1, 1200);
  add({ content: "Let " }, 2, 1300);
  add({ content: "me." }, 3, 1400);
  add({ tool_calls: [{ index: 0, id: "k", function: { name: "f", arguments: "" } }] }, 4, 1500);
  add({ tool_calls: [{ index: 0, function: { arguments: '{"a"' } }] }, 5, 1600);
  add({ tool_calls: [{ index: 0, function: { arguments: ":1}" } }] }, 6, 1700);
  assert.equal(t.stats.tokens, 6);
  add({}, 7, 1800, { finish: "tool_calls" });
  add(null, 7, 1900, { usage: { prompt_tokens: 9, completion_tokens: 13, prompt_tokens_details: { cached_tokens: 4 } } });
  assert.deepEqual([t.content, t.reasoning, t.calls], ["Let me.", "hm", [{ id: "k", name: "f", arguments: '{"a":1}' }]]);
  assert.deepEqual(t.stats, { firstToken: 200, took: 800, tokens: 13, finish: "tool_calls", promptTokens: 9, cachedTokens: 4, reasoningTokens: 0 });
  assert.equal(answer.speed(t.stats), 20);
  assert.equal(answer.speed({ tokens: 10, took: 250, firstToken: 200 }), 40, "a burst");
  assert.equal(answer.speed({ tokens: 1, took: 5, firstToken: 1 }), undefined);
});

test("an export has the shown branch with calls", () => {
  const c = conversation([turn("1", "", "user", "Weather?"), turn("2", "1", "assistant", "Let me look.", { model: "m", calls: [{ id: "k", name: "f", arguments: "{}" }] })], "2");
  const text = exporting.markdown(c);
  assert.match(text, /^# Weather\?\n\n## You\n\nWeather\?\n\n## Model \(m\)\n\nLet me look\.\n\n`f`\n\n```json\n\{\}\n```\n$/);
  assert.equal(exporting.fileName(c), "weather");
  assert.equal(exporting.fileName({ ...c, title: "../ÄÖ  日本/" }), "äö-日本");
});

test("math is found, and money is not", () => {
  const kinds = (text) => {
    const list = [];
    const walk = (ts) => ts?.forEach((t) => { if (t.type === "math") list.push([t.text, t.display]); else walk(t.tokens); });
    walk(tokens.lex(text));
    return list;
  };
  assert.deepEqual(kinds("so $x^2$ and \\(y\\)"), [["x^2", false], ["y", false]]);
  assert.deepEqual(kinds("a\n\n$$\n\\frac{1}{2}\n$$\n\nb \\[z\\] c"), [["\\frac{1}{2}", true], ["z", true]]);
  assert.deepEqual(kinds("it costs $5, not $7, or $ 3 $"), []);
  assert.deepEqual(kinds("`$x$` and\n```\n$$y$$\n```\n"), [], "code");
});

test("links lead to web and mail addresses only", () => {
  for (const bad of ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "java\nscript:alert(1)", " javascript:alert(1)", "data:text/html,x", "vbscript:x", "file:///etc/passwd", "/v1/models", "//x", ""]) {
    assert.equal(tokens.address(bad), undefined, bad);
  }
  assert.equal(tokens.address("https://example.com/a?b"), "https://example.com/a?b");
  assert.equal(tokens.address("mailto:a@b.c"), "mailto:a@b.c");
});

test("character references become text", () => {
  assert.equal(tokens.decoded("a &lt;b&gt; &amp;amp; &#39; &#x65e5; &nope; &#0; &#xd800; &#x110000;"), "a <b> &amp; ' 日 &nope; &#0; &#xd800; &#x110000;");
});

test("hostile markdown ends soon", () => {
  const begin = performance.now();
  for (const text of [">".repeat(50_000), "*".repeat(50_000), "[".repeat(20_000), "- ".repeat(5_000), "$".repeat(50_000), "`".repeat(50_000), "|".repeat(20_000), "\\(".repeat(20_000)]) {
    assert.ok(tokens.lex(text).length > 0);
  }
  assert.ok(performance.now() - begin < 20_000, `${performance.now() - begin} ms`);
});

test("metrics are read with their labels, and histograms since an earlier state", () => {
  const text = (a, b, c, s) => `# HELP x y\nh_bucket{stage="t",le="0.1"} ${a}\nh_bucket{stage="t",le="1"} ${b}\nh_bucket{stage="t",le="+Inf"} ${c}\nh_sum{stage="t"} ${s}\nh_count{stage="t"} ${c}\ng{stage="t",who="a\\"b"} 2\ng{stage="u"} 3\n`;
  const all = prometheus.parse(text(10, 20, 20, 5));
  assert.equal(prometheus.sum(all, "g"), 5);
  assert.equal(prometheus.sum(all, "g", { stage: "u" }), 3);
  assert.equal(all.get("g")[0].labels.who, 'a"b');
  const before = prometheus.histogram(all, "h", { stage: "t" });
  const now = prometheus.histogram(prometheus.parse(text(20, 40, 40, 20)), "h", { stage: "t" });
  const d = prometheus.since(now, before);
  assert.deepEqual([d.count, d.sum, d.buckets.map((b) => b.count)], [20, 15, [10, 20, 20]]);
  assert.equal(prometheus.mean(d), 0.75);
  assert.ok(Math.abs(prometheus.quantile(d, 0.75) - 0.55) < 1e-9, "half way in the second bucket");
  assert.equal(prometheus.quantile(prometheus.since(now, now), 0.5), undefined);
  assert.deepEqual(prometheus.since(before, now), before, "a process that has started again");
});

test("a sequence of the KV cache has the id of its request", () => {
  const list = [{ id: "chatcmpl-0123456789abcdef", sequences: ["7", "8"] }, { id: "resp_9", sequences: [] }, { id: "old" }];
  const ids = timeline.bySequence(list);
  assert.deepEqual([...ids], [["7", list[0].id], ["8", list[0].id]]);
  assert.deepEqual([timeline.shortId(list[0].id), timeline.shortId("resp_9"), timeline.shortId("other-12ab34cd")], ["0123456789ab", "9", "other-12ab34"]);
});

test("the map and the bar show every slab once", () => {
  const stats = { slabs: 10, committed: 9, used: 4, shared: 1, cached: 3, promised: 5 };
  assert.deepEqual(pool.states(stats).map((s) => [s.name, s.slabs]), [["held", 3], ["shared", 1], ["cached", 3], ["free", 2], ["absent", 1]]);
  const map = { cell_slabs: 4, held: [3, 0, 0], shared: [1, 0, 0], cached: [0, 2, 1], absent: [0, 0, 1] };
  assert.deepEqual(pool.cells(map, 10).map((c) => [c.all, c.held, c.shared, c.cached, c.free, c.absent]), [[4, 3, 1, 0, 0, 0], [4, 0, 0, 2, 2, 0], [2, 0, 0, 1, 0, 1]]);
  assert.deepEqual([0, 65536, 67108864, 536870912, 4e9, 2e11].map(pool.memory), ["0.0 MB", "0.1 MB", "67.1 MB", "537 MB", "4.0 GB", "200 GB"]);
  let samples = [];
  for (const at of [0, 1000, pool.span, pool.span + 1000]) samples = pool.remember(samples, at, stats);
  assert.deepEqual(samples.map((s) => s.at), [1000, pool.span, pool.span + 1000]);
  assert.deepEqual([samples[0].used, samples[0].full], [0.4, 0.7]);
  assert.deepEqual(pool.hitRatio({ tokens: 40, hits: 10 }, { tokens: 30, hits: 5 }), { all: "25.0%", recent: "50.0%" });
  assert.equal(pool.percent(0, 0), "–");
});

test("a request's stages follow each other up to its end, or to now", () => {
  const at = (ms) => new Date(ms).toISOString();
  const r = { arrival: at(1000), tokenized: at(1010), begun: at(1500), first_token: at(2000), end: at(4000), generated_tokens: 41 };
  const list = (x, now) => timeline.spans(x, now).map((s) => [s.stage, s.from, s.to]);
  assert.deepEqual(list(r, 9000), [["tokenize", 1000, 1010], ["queue", 1010, 1500], ["prefill", 1500, 2000], ["decode", 2000, 4000]]);
  assert.deepEqual([timeline.firstToken(r), timeline.rate(r, 9000)], [1, 20]);
  assert.deepEqual(list({ arrival: at(1000), tokenized: at(1010) }, 1200), [["tokenize", 1000, 1010], ["queue", 1010, 1200]]);
  assert.deepEqual(list({ arrival: at(1000), end: at(1100) }, 9000), [["tokenize", 1000, 1100]], "refused before it was tokenized");
});
