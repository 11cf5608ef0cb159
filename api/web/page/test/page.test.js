// Drives the pages of running servers in Chromium.
//   MILLRACE=bin/millrace CHROMIUM=/usr/bin/chromium SHOTS=dir npm test
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import path from "node:path";
import { after, before, describe, test } from "node:test";
import { launch, plainHost, visit } from "./browser.js";
import { Servers, until } from "./servers.js";

let servers, browser, real, slow, key;

before(async () => {
  servers = await Servers.open();
  const program = process.env.MILLRACE ?? path.resolve(import.meta.dirname, "../../../../bin/millrace");
  const keys = path.join(servers.dir, "keys.yaml");
  const made = execFileSync("bash", ["-c", `"$1" keys create --tenant acme 2>&1 >"$2"`, "bash", program, keys]).toString();
  key = /mr-[0-9a-zA-Z_-]+/.exec(made)[0];
  [real, slow, browser] = await Promise.all([
    servers.start("--api-keys", keys),
    servers.start("--backend", "sim", "--device", await servers.slow()),
    launch(),
  ]);
});

after(async () => {
  await browser?.close();
  await servers?.close();
});

const ask = async (page, text) => {
  await page.fill("#input", text);
  await page.keyboard.press("Enter");
};
const live = ".turn.assistant.live";
const done = ".turn.assistant:not(.live) .stats";
const body = (page, n = -1) => page.locator(".turn.assistant .md").nth(n).innerText();
const written = (page, length) => page.waitForFunction((n) => document.querySelector(".turn.assistant.live .md")?.innerText.length > n, length);
const models = (page) => page.waitForSelector(".picker select");

/** scripted makes the page's next answers those of a list of chunks, each answer whole. */
async function scripted(page, ...answers) {
  const requests = [];
  await page.route("**/v1/chat/completions", async (route) => {
    requests.push(route.request().postDataJSON());
    const chunks = answers[Math.min(requests.length, answers.length) - 1];
    const text = chunks.map((c, i) => `id: ${i + 1}\ndata: ${JSON.stringify(c)}\n\n`).join("");
    await route.fulfill({ contentType: "text/event-stream", body: `${text}data: [DONE]\n\n` });
  });
  return requests;
}
async function textOf(download) {
  let text = "";
  for await (const chunk of await download.createReadStream()) text += chunk;
  return text;
}

const piece = (delta, finish = null) => ({ id: "chatcmpl-1", choices: [{ index: 0, delta, finish_reason: finish }] });
const says = (text) => [piece({ role: "assistant" }), piece({ content: text }), piece({}, "stop")];

describe("a server with keys", () => {
  for (const [size, dark, host] of [["wide", false, "127.0.0.1"], ["phone", true, plainHost]]) {
    test(`requests a key, and answers with one: ${size}, at ${host}`, async (t) => {
      const page = await visit(browser, t, `${real.url.replace("127.0.0.1", host)}/`, { size, dark, expected: ["401 (Unauthorized)"] });
      await page.waitForSelector("dialog[open]");
      assert.equal(await page.evaluate(() => isSecureContext), host !== plainHost);
      await page.accessible();
      await page.fill("dialog input", "mr-wrong");
      await page.keyboard.press("Enter");
      await page.getByText("The server does not accept this key.").waitFor();
      await page.fill("dialog input", key);
      await page.keyboard.press("Enter");
      await models(page);
      await page.waitForSelector("dialog", { state: "detached" });
      await page.shot(`empty-${size}`);

      await ask(page, "What is the capital of the US?");
      await page.waitForSelector(done);
      assert.match(await body(page), /Washington/);
      assert.match(await page.locator(done).innerText(), /tokens\/s · first token after \d+\.\d\d s · \d+ tokens · prompt \d+/);
      await page.accessible();
      await page.fits();

      await page.reload();
      await page.waitForSelector(done);
      assert.match(await body(page), /Washington/, "the conversation is there after a reload, and the key");
      await models(page);
      await page.shot(`answer-${size}`);
      page.quiet();
    });
  }

  test("continues an answer as the model would have", async (t) => {
    const page = await visit(browser, t, `${real.url}/`, { expected: ["401 (Unauthorized)"] });
    await page.fill("dialog input", key);
    await page.keyboard.press("Enter");
    await models(page);
    await page.click("button[aria-label=Settings]");
    await page.fill("#max_tokens", "3");
    await ask(page, "What is the capital of the US?");
    await page.waitForSelector(done);
    assert.equal(await body(page), "The capital of");
    await page.fill("#max_tokens", "");
    await page.getByRole("button", { name: "Continue" }).click();
    await page.getByText("The capital of the United States is Washington, D.C.").waitFor();
    await page.waitForSelector(done);
    assert.equal(await page.getByRole("button", { name: "Continue" }).count(), 0, "it ended by itself");
    page.quiet();
  });

  test("answers in the form of a schema", async (t) => {
    const page = await visit(browser, t, `${real.url}/`, { expected: ["401 (Unauthorized)"] });
    await page.fill("dialog input", key);
    await page.keyboard.press("Enter");
    await models(page);
    await page.click("button[aria-label=Settings]");
    await page.getByRole("combobox", { name: "Format" }).selectOption("json_schema");
    await page.getByLabel("JSON schema").fill('{"type":"object","properties":{"city":{"enum":["Paris","Rome"]}},"required":["city"],"additionalProperties":false}');
    await page.getByRole("button", { name: "Insert an example" }).click(); // of tools
    await ask(page, "Where?");
    await page.waitForSelector(done);
    assert.match(JSON.parse(await body(page)).city, /^(Paris|Rome)$/);
    page.quiet();
  });

  test("shows the pipeline with a key only", async (t) => {
    const page = await visit(browser, t, `${real.url}/debug/pipeline`, { expected: ["401 (Unauthorized)"] });
    await page.getByText("The server requires an API key.").waitFor();
    assert.equal(await page.locator("section").count(), 0);
    await page.accessible();
    await page.fill("#key", key);
    await page.keyboard.press("Enter");
    await page.waitForSelector(".stages");
    page.quiet();
  });
});

describe("the model", () => {
  for (const [size, dark] of [["wide", false], ["phone", true]]) {
    test(`is described with its memory, and how much of its context is taken: ${size}`, async (t) => {
      const page = await visit(browser, t, `${slow.url}/`, { size, dark });
      await models(page);
      await page.getByRole("button", { name: "What is 7 plus 5?" }).waitFor();
      await page.getByRole("button", { name: "About the model" }).click();
      const info = page.locator("#model-info");
      await info.getByText("KV memory").waitFor();
      assert.match(await info.innerText(), /tiny-chat[^]*Weights\s+bf16[^]*Context\s+2,048 tokens\s+Runs on\s+sim\s+KV memory\s+[\d.]+ MB used of [\d.]+ MB/);
      await page.accessible();
      await page.fits();
      await page.shot(`model-${size}`);
      await page.keyboard.press("Escape");
      await info.waitFor({ state: "hidden" });

      const usage = { prompt_tokens: 1900, completion_tokens: 10 };
      await scripted(page, [piece({ content: "with usage" }), piece({}, "stop"), { id: "chatcmpl-1", choices: [], usage }], says("without"));
      await ask(page, "one");
      const meter = page.getByRole("meter", { name: "Context" });
      await page.getByText("1,910 of 2,048 tokens, nearly full").waitFor();
      assert.equal(await meter.getAttribute("aria-valuenow"), "1910");
      await page.accessible();
      await page.fits();
      await ask(page, "two");
      await page.getByText("without", { exact: true }).waitFor();
      await page.waitForFunction(() => /^[1-9]\d? of 2,048 tokens$/.test(document.querySelector(".context")?.innerText), undefined, { polling: "raf" }); // counted by the server
      page.quiet();
    });
  }

  test("has no suggestions unless it is the demo", async (t) => {
    const page = await visit(browser, t, "about:blank");
    await page.route("**/v1/models", (route) => route.fulfill({ json: { data: [{ id: "other", max_model_len: 100 }] } }));
    await page.goto(`${slow.url}/`);
    await models(page);
    assert.equal(await page.locator(".ideas").count(), 0);
  });
});

describe("an answer", () => {
  test("streams, stops, and is cancelled at the server", async (t) => {
    const page = await visit(browser, t, `${slow.url}/`);
    await models(page);
    await ask(page, "Tell me a story.");
    await written(page, 20);
    const early = await body(page);
    await written(page, early.length + 20);
    assert.match(await page.locator(`${live} .stats`).innerText(), /\d+ tokens · [\d.]+ tokens\/s/);
    await page.keyboard.press("Escape");
    await page.waitForSelector(done);
    assert.match(await page.locator(done).innerText(), /^stopped · /);
    await until("the server has no sequence left", async () => (await (await fetch(`${slow.url}/debug/kv?brief=1`)).json()).stats.regions === 0, 5000);
    page.quiet();
  });

  test("continues after a reload, and is the same as without one", async (t) => {
    const page = await visit(browser, t, `${slow.url}/`);
    await models(page);
    await page.click("button[aria-label=Settings]");
    await page.fill("#max_tokens", "150");
    await page.fill("#temperature", "0");
    await ask(page, "Tell me a long story.");
    await page.waitForSelector(done);
    const whole = await body(page);
    await page.click("button[aria-label='Regenerate answer']");
    await written(page, 30);
    await page.reload();
    await page.waitForSelector(live);
    await page.waitForSelector(done);
    assert.equal(await body(page), whole);
    assert.match(await page.locator(".branches").innerText(), /2\/2/);
    page.quiet();
  });

  test("continues after the token limit, in its place, also after a reload", async (t) => {
    const page = await visit(browser, t, `${slow.url}/`);
    await models(page);
    await page.click("button[aria-label=Settings]");
    await page.fill("#max_tokens", "60");
    await ask(page, "Tell me a story with an end.");
    await page.waitForSelector(done);
    const half = await body(page);
    assert.match(await page.locator(done).innerText(), /60 tokens .* cut at the token limit/);
    await page.accessible();
    await page.getByRole("button", { name: "Continue" }).click();
    await written(page, half.length + 5);
    await page.reload();
    await page.waitForSelector(live);
    await page.waitForSelector(done);
    const whole = await body(page);
    assert.ok(whole.startsWith(half) && whole.length > half.length, whole);
    assert.match(await page.locator(done).innerText(), /120 tokens/);
    assert.equal(await page.locator(".branches").count(), 0, "in its place");
    page.quiet();
  });

  test("says why the server refused it, and can be requested again", async (t) => {
    const page = await visit(browser, t, `${slow.url}/`, { expected: ["400 (Bad Request)"] });
    await models(page);
    await page.click("button[aria-label=Settings]");
    await page.fill("#max_tokens", "99999999");
    await ask(page, "hi");
    await page.waitForSelector(".error");
    assert.match(await page.locator(".error").innerText(), /max_tokens/);
    await page.accessible();
    await page.fill("#max_tokens", "5");
    await page.click(".error button");
    await page.waitForSelector(done);
    await page.locator(".error").waitFor({ state: "detached" });
    page.quiet();
  });

  test("continues at another gateway when its gateway dies", async (t) => {
    const gateway = await servers.start("--roles", "gateway", "--nats", slow.nats);
    const page = await visit(browser, t, `${await servers.balance(gateway, slow)}/`, { expected: ["net::ERR_"] });
    await models(page);
    await page.click("button[aria-label=Settings]");
    await page.fill("#max_tokens", "250");
    await page.fill("#temperature", "0");
    await ask(page, "Tell me another story.");
    await written(page, 40);
    await servers.kill(gateway);
    await page.waitForSelector(done);
    const first = await body(page);
    assert.equal(await page.locator(".error").count(), 0);
    await page.click("button[aria-label='Regenerate answer']");
    await page.waitForFunction(() => /2\/2/.test(document.querySelector(".branches")?.innerText) && !document.querySelector(".live"));
    assert.equal(first, await body(page), "nothing is missing, and nothing came twice");
    assert.match(await page.locator(done).innerText(), /250 tokens/);
    page.quiet();
  });
});

describe("a conversation", () => {
  test("branches when a question is edited, and keeps both branches", async (t) => {
    const page = await visit(browser, t, `${slow.url}/`);
    await models(page);
    const requests = await scripted(page, says("first"), says("second"), says("third"));
    await ask(page, "one");
    await page.getByText("first", { exact: true }).waitFor();
    await page.keyboard.press("ArrowUp");
    await page.locator(".editing textarea").fill("two");
    await page.keyboard.press("Enter");
    await page.getByText("second", { exact: true }).waitFor();
    assert.deepEqual(requests[1].messages, [{ role: "user", content: "two" }]);
    await page.click("button[aria-label='Earlier variant']");
    await page.getByText("first", { exact: true }).waitFor();
    await ask(page, "more");
    await page.getByText("third", { exact: true }).waitFor();
    assert.deepEqual(requests[2].messages.map((m) => m.content), ["one", "first", "more"]);
    await page.click("button[aria-label='Later variant']");
    await page.getByText("second", { exact: true }).waitFor();
    assert.equal(await page.getByText("third", { exact: true }).count(), 0);
    page.quiet();
  });

  test("has answers that are edited and deleted, and shows one that is the same again", async (t) => {
    const page = await visit(browser, t, `${slow.url}/`);
    await models(page);
    const requests = await scripted(page, says("first"), says("first"), says("second"), says(" more"), says("third"));
    await ask(page, "one");
    await page.waitForSelector(done);
    await page.click("button[aria-label='Regenerate answer']");
    await page.getByText("the same as variant 1").waitFor();
    await page.click("button[aria-label='Edit answer']");
    const field = page.getByRole("textbox", { name: "Answer" });
    await field.fill("mine");
    await page.accessible();
    await page.shot("edit-answer");
    await field.press("Control+Enter");
    await page.getByText("mine", { exact: true }).waitFor();
    assert.match(await page.locator(".branches").innerText(), /3\/3/);
    await ask(page, "two");
    await page.getByText("second", { exact: true }).waitFor();
    assert.deepEqual(requests[2].messages.map((m) => m.content), ["one", "mine", "two"]);

    await page.getByRole("button", { name: "Delete answer" }).first().click();
    await page.getByText("Delete it and the 2 messages after it?").waitFor();
    await page.accessible();
    await page.shot("delete-answer");
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Delete question" }).last().click();
    await page.getByText("Delete it and the message after it?").waitFor();
    await page.keyboard.press("Enter");
    await page.getByText("mine", { exact: true }).waitFor();
    assert.equal(await page.locator(".turn").count(), 2);
    await page.getByRole("button", { name: "Continue" }).click();
    await page.getByText("mine more", { exact: true }).waitFor();
    assert.deepEqual([requests[3].continue_final_message, requests[3].messages.at(-1)], [true, { role: "assistant", content: "mine" }]);
    assert.equal(await page.getByRole("button", { name: "Continue" }).count(), 0, "it ended by itself");

    for (let i = 0; i < 3; i++) {
      await page.getByRole("button", { name: "Delete answer" }).click();
      await page.getByRole("button", { name: "Delete", exact: true }).click();
    }
    await page.reload();
    await page.getByRole("button", { name: "Request an answer" }).click();
    await page.getByText("third", { exact: true }).waitFor();
    assert.equal(await page.locator(".branches").count(), 0);
    page.quiet();
  });

  test("is renamed, found, exported and deleted", async (t) => {
    const page = await visit(browser, t, `${slow.url}/`);
    await models(page);
    await scripted(page, says("A **heron** stands in the mill race."));
    await ask(page, "Which bird?");
    await page.getByText("heron").waitFor();
    await page.keyboard.press("Alt+n");
    await ask(page, "Something else");
    await page.waitForSelector(".list li:nth-child(2)");
    assert.equal(await page.locator(".turn.user").count(), 1, "a new conversation");

    await page.keyboard.press("Control+k");
    await page.locator("input[type=search]:focus").waitFor(); // the focus comes with the next frame
    await page.keyboard.type("bird");
    await page.waitForFunction(() => document.querySelectorAll(".list li").length === 1);
    await page.fill("input[type=search]", "");

    const bird = page.locator(".list li", { hasText: "Which bird?" });
    await bird.hover();
    await bird.locator("[aria-label^=Rename]").click();
    const field = page.locator(".rename input:focus"); // it has the focus soon after the click
    await field.fill("Birds");
    await field.press("Enter");
    const birds = page.locator(".list li", { hasText: "Birds" });
    await birds.hover();
    const download = page.waitForEvent("download");
    await birds.locator("[aria-label^=Export]").click();
    const document = await download;
    assert.equal(document.suggestedFilename(), "birds.md");
    assert.match(await textOf(document), /^# Birds\n\n## You\n\nWhich bird\?\n\n## Model \(tiny-chat\)\n\nA \*\*heron\*\*/);

    const all = page.waitForEvent("download");
    await page.click("button[aria-label='Export all conversations']");
    const json = JSON.parse(await textOf(await all));
    assert.deepEqual(json.map((c) => [c.title, c.turns.length]), [["", 2], ["Birds", 2]]);

    await page.reload();
    await birds.waitFor();
    await birds.hover();
    await birds.locator("[aria-label^=Delete]").click();
    await page.getByRole("button", { name: "Delete", exact: true }).click();
    await page.waitForFunction(() => document.querySelectorAll(".list li").length === 1);
    await page.reload();
    await page.waitForSelector(".list li");
    assert.equal(await page.locator(".list li").count(), 1);

    const file = page.locator("input[type=file][aria-label='Exported file']");
    const exported = (text) => ({ name: "all.json", mimeType: "application/json", buffer: Buffer.from(text) });
    await file.setInputFiles(exported('[{"id":"x"}]'));
    await page.getByText("all.json: [0].turns: found nothing, expected a list").waitFor();
    await page.accessible();
    await file.setInputFiles(exported(JSON.stringify(json)));
    await page.getByText("1 conversation imported. 1 is here already.").waitFor();
    await page.accessible();
    await page.reload();
    await birds.locator(".entry").click();
    await page.getByText("heron").waitFor();
    assert.equal(await page.locator(".list li").count(), 2);
    page.quiet();
  });

  for (const [size, dark] of [["wide", false], ["phone", true]]) {
    test(`takes text files into the message: ${size}`, async (t) => {
      const page = await visit(browser, t, `${slow.url}/`, { size, dark });
      await models(page);
      const requests = await scripted(page, says("read"));
      const file = (name, mimeType, text) => ({ name, mimeType, buffer: Buffer.from(text) });
      await page.fill("#input", "Explain it");
      await page.locator("input[aria-label='Text files']").setInputFiles([file("a.py", "text/x-python", "x = 1\n"), file("p.png", "image/png", "no"), file("b.bin", "", Buffer.from([0, 255]))]);
      await page.getByText("p.png: found image/png, expected text: the model reads text only; b.bin: found bytes that are not UTF-8 text").waitFor();
      await page.accessible();
      await page.fits();
      await page.shot(`attach-${size}`);
      for (const kind of ["drop", "paste"]) {
        await page.evaluate((k) => {
          const data = new DataTransfer();
          data.items.add(new File([k], `${k}.txt`, { type: "text/plain" }));
          const event = k === "drop" ? new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }) : new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true });
          document.getElementById("input").dispatchEvent(event);
        }, kind);
        await page.waitForFunction((k) => document.getElementById("input").value.includes(`${k}.txt`), kind);
      }
      await page.press("#input", "Enter");
      await page.waitForSelector(done);
      assert.equal(requests[0].messages[0].content,
        "Explain it\n\na.py:\n\n```python\nx = 1\n```\n\ndrop.txt:\n\n```txt\ndrop\n```\n\npaste.txt:\n\n```txt\npaste\n```");
      page.quiet();
    });
  }

  test("is reached with few keys", async (t) => {
    const page = await visit(browser, t, `${slow.url}/`);
    await models(page);
    await scripted(page, says("yes"));
    for (const q of ["one", "two", "three"]) {
      await page.keyboard.press("Alt+n");
      await ask(page, q);
      await page.waitForSelector(done);
    }
    await page.reload();
    await page.locator("#input:focus").waitFor();
    const at = () => page.evaluate(() => document.activeElement.getAttribute("aria-label") ?? document.activeElement.innerText);
    await page.evaluate(() => (document.activeElement.blur(), document.querySelector(".skip").focus()));
    assert.equal(await at(), "Skip to the message");
    await page.accessible();
    await page.shot("skip");
    await page.keyboard.press("Enter");
    await page.locator("#input:focus").waitFor();
    assert.match(page.url(), /#[0-9a-f]{32}$/, "the conversation is still the one of the address");

    await page.focus("input[type=search]");
    const walked = [];
    for (const k of ["Tab", "ArrowDown", "End", "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft", "Home", "Tab"]) {
      await page.keyboard.press(k);
      walked.push(await at());
    }
    assert.deepEqual(walked, ["three", "two", "one", "Rename one", "Export one", "Rename one", "one", "three", "Pipeline"]);
    await page.keyboard.press("Shift+Tab");
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("F2");
    await page.locator(".rename input:focus").fill("second");
    await page.keyboard.press("Enter");
    await page.locator(".list .entry:focus", { hasText: "second" }).press("Delete");
    await page.locator(".sure .bad:focus").waitFor();
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.querySelectorAll(".list li").length === 2);
    page.quiet();
  });

  test("sends settings, and has the schema's form", async (t) => {
    const page = await visit(browser, t, `${slow.url}/`);
    await models(page);
    const requests = await scripted(page, says("{}"));
    await page.click("button[aria-label=Settings]");
    await page.getByLabel("System prompt").fill("Be short.");
    await page.getByLabel("Temperature").fill("0.5");
    await page.getByLabel("Seed").fill("7");
    await page.getByRole("combobox", { name: "Format" }).selectOption("json_schema");
    await page.getByRole("button", { name: "Insert an example" }).first().click();
    await page.accessible();
    await ask(page, "Where?");
    await page.waitForSelector(done);
    const { messages, temperature, seed, response_format: format, top_p: topP } = requests[0];
    assert.deepEqual([messages[0], temperature, seed, topP], [{ role: "system", content: "Be short." }, 0.5, 7, undefined]);
    assert.equal(format.json_schema.schema.properties.city.type, "string");
    await page.getByLabel("JSON schema").fill("{");
    await ask(page, "Again?");
    await page.waitForSelector(".error");
    assert.match(await page.locator(".error").innerText(), /JSON schema: expected JSON/);
    assert.equal(requests.length, 1);
    page.quiet();
  });

  test("has its own settings, and a new one begins with those chosen for it", async (t) => {
    const page = await visit(browser, t, `${slow.url}/`);
    await models(page);
    const requests = await scripted(page, says("{}"));
    await page.click("button[aria-label=Settings]");
    await page.getByLabel("System prompt").fill("Be short.");
    await page.getByRole("combobox", { name: "Format" }).selectOption("json_schema");
    await page.getByRole("button", { name: "Insert an example" }).first().click();
    await page.getByRole("button", { name: "Insert an example" }).click(); // of tools
    await page.getByLabel("Temperature").fill("0.5");
    await ask(page, "Where?");
    await page.waitForSelector(done);
    assert.deepEqual(Object.keys(requests[0]).filter((k) => ["tools", "response_format", "temperature"].includes(k)).sort(), ["response_format", "temperature", "tools"]);
    await page.keyboard.press("Alt+n");
    assert.equal(await page.getByLabel("System prompt").inputValue(), "");
    await ask(page, "And now?");
    await page.waitForSelector(done);
    const { model: _, ...second } = requests[1];
    assert.deepEqual(second, { messages: [{ role: "user", content: "And now?" }], stream: true, stream_options: { include_usage: true }, stream_resume: "auto" });

    await page.getByLabel("Temperature").fill("0.7");
    await page.getByRole("button", { name: "Use for new chats" }).click();
    await page.getByText("New chats begin with these settings.").waitFor();
    await page.accessible();
    await page.keyboard.press("Alt+n");
    await page.reload();
    await models(page);
    await ask(page, "Later");
    await page.waitForSelector(done);
    assert.equal(requests[2].temperature, 0.7);
    await page.click(".list li:has-text('Where?') .entry");
    await ask(page, "Still?");
    await page.waitForFunction(() => document.querySelectorAll(".turn.assistant:not(.live) .stats").length === 2);
    assert.deepEqual([requests[3].temperature, requests[3].messages[0].content], [0.5, "Be short."]);
    page.quiet();
  });

  test("shows reasoning folded, and tool calls whose results it sends", async (t) => {
    const page = await visit(browser, t, `${slow.url}/`);
    await models(page);
    const call = (a) => piece({ tool_calls: [{ index: 0, ...a }] });
    const requests = await scripted(page,
      [piece({ role: "assistant" }), piece({ reasoning_content: "I need the *weather*." }), call({ id: "call_1", type: "function", function: { name: "get_weather", arguments: "" } }),
        call({ function: { arguments: '{"city":' } }), call({ function: { arguments: '"Paris"}' } }), piece({}, "tool_calls")],
      says("It rains."));
    await ask(page, "Weather in Paris?");
    await page.waitForSelector(".results");
    assert.equal(await page.getByText("I need the").isVisible(), false);
    await page.click(".reasoning summary");
    assert.equal(await page.getByText("I need the").isVisible(), true);
    assert.match(await page.locator(".call pre").innerText(), /"city": "Paris"/);
    await page.accessible();
    await page.shot("tools");
    await page.fill(".results textarea", '{"sky":"rain"}');
    await page.click(".results button");
    await page.getByText("It rains.").waitFor();
    assert.deepEqual(requests[1].messages.slice(1), [
      { role: "assistant", content: null, tool_calls: [{ id: "call_1", type: "function", function: { name: "get_weather", arguments: '{"city":"Paris"}' } }], reasoning_content: "I need the *weather*." },
      { role: "tool", tool_call_id: "call_1", content: '{"sky":"rain"}' },
    ]);
    page.quiet();
  });
});

const rich = `# Flow

Its discharge is $Q = v A$, and **by Manning**:

$$v = \\frac{1}{n} R^{2/3} S^{1/2}$$

| quantity | unit |
|---|---:|
| $Q$ | m³/s |

\`\`\`python
def discharge(v, a):
    return v * a  # a comment
\`\`\`

- [x] measured
`;

describe("the text of a model", () => {
  for (const [size, dark] of [["wide", false], ["wide", true], ["phone", false], ["phone", true]]) {
    test(`is markdown with math and code: ${size} ${dark ? "dark" : "light"}`, async (t) => {
      const page = await visit(browser, t, `${slow.url}/`, { size, dark });
      await models(page);
      await scripted(page, says(rich));
      await ask(page, "How much water?");
      await page.waitForSelector(".katex-display");
      await page.waitForSelector(".hljs-keyword");
      assert.equal(await page.locator(".md strong").innerText(), "by Manning");
      assert.equal(await page.locator(".md td").count(), 2);
      await page.locator("button[aria-label='Copy code']").click();
      assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "def discharge(v, a):\n    return v * a  # a comment");
      const fonts = await page.evaluate(async () => (await document.fonts.ready, [...document.fonts].filter((f) => f.status === "loaded").map((f) => f.family)));
      assert.ok(fonts.includes("KaTeX_Main"), String(fonts));
      await page.accessible();
      await page.fits();
      await page.shot(`markdown-${size}-${dark ? "dark" : "light"}`);
      page.quiet();
    });
  }

  test("cannot become markup, a script or a request", async (t) => {
    const page = await visit(browser, t, `${slow.url}/`);
    await models(page);
    const hostile = [
      "<img src=x onerror=alert(1)> <script>alert(2)</script> <b>bold</b> <iframe src=https://example.com></iframe>",
      "[a](javascript:alert(3)) [b](data:text/html,x) ![picture](https://example.com/x.png) <https://example.com/auto>",
      "$\\href{javascript:alert(4)}{x}$ $\\includegraphics{https://example.com/y.png}$ $\\htmlStyle{color:red}{y}$",
      `$${"\\def\\a{\\a\\a}\\a"}$`,
      `${">".repeat(300)} deep`,
      "<svg onload=alert(5)>", "\u202e reversed", "```html\n<script>alert(6)</script>\n```",
    ].join("\n\n");
    await page.evaluate(() => (globalThis.alert = () => (globalThis.hit = true)));
    await scripted(page, says(hostile));
    await ask(page, "<img src=y onerror=alert(7)> <b>mine</b>");
    await page.waitForSelector(done);
    await page.waitForSelector(".hljs-tag");
    assert.equal(await page.evaluate(() => globalThis.hit), undefined);
    assert.equal(await page.locator(".log :is(img, script, iframe, b, object, embed, style)").count(), 0);
    assert.deepEqual(await page.locator(".log a").evaluateAll((list) => list.map((a) => [a.href, a.rel.includes("noopener")])),
      [["https://example.com/x.png", true], ["https://example.com/auto", true]]);
    assert.match(await page.locator(".log").innerText(), /<script>alert\(2\)<\/script>/);
    page.quiet();
  });
});

describe("the pipeline", () => {
  test("shows stages, steps, slabs, requests and nodes while answers run", async (t) => {
    const abort = new AbortController();
    t.after(() => abort.abort());
    const client = async (i) => {
      for (;;) {
        const body = JSON.stringify({ stream: true, max_tokens: 400, messages: [{ role: "user", content: `Story ${i}` }] });
        await (await fetch(`${slow.url}/v1/chat/completions`, { method: "POST", signal: abort.signal, body })).text();
      }
    };
    for (let i = 0; i < 3; i++) client(i).catch(() => {}); // until it is aborted
    const page = await visit(browser, t, `${slow.url}/debug/pipeline`);
    await page.waitForSelector(".stages");
    await page.waitForFunction(() => document.querySelectorAll(".requests td.lane .decode").length >= 3);
    await page.waitForFunction(() => document.querySelectorAll(".steps rect.decode").length > 10);
    await page.waitForFunction(() => /tokens\/s\s*[1-9]/.test(document.querySelector(".stages").innerText));
    assert.match(await page.locator(".bar").first().getAttribute("aria-label"), /[1-9]\d* held by one sequence/);
    assert.match(await page.getByRole("region", { name: "Table: Nodes" }).innerText(), /serving\s+gateway, tokenize, compute, detok\s+tiny-chat\s+sim/);
    await page.accessible();
    await page.fits();
    await page.shot("pipeline");

    await page.getByRole("link", { name: "KV cache" }).click();
    await page.waitForSelector("canvas");
    await page.getByRole("region", { name: "Table: Sequences" }).waitFor();
    const cell = await page.waitForFunction(() => document.querySelector("section[aria-labelledby=sequences-title] td")?.innerText.match(/^[0-9a-f]{12}$/)?.[0]);
    const request = await cell.jsonValue();
    const known = (await (await fetch(`${slow.url}/debug/pipeline`)).json()).requests.map((r) => r.id);
    assert.ok(known.some((id) => id.includes(request)), "the id of a request on the page of the pipeline");
    await page.getByText("What the words mean").click();
    await page.getByText("a piece of the KV memory").waitFor();
    await page.shot("kv");
    assert.ok(await page.evaluate(() => {
      const c = document.querySelector("canvas");
      return new Set(new Uint32Array(c.getContext("2d").getImageData(0, 0, c.width, c.height).data.buffer)).size >= 3;
    }), "the map has several colors");
    await page.accessible();
    page.quiet();
  });

  test("of a gateway without a worker writes no errors", async (t) => {
    const gateway = await servers.start("--roles", "gateway", "--nats", slow.nats);
    const page = await visit(browser, t, `${gateway.url}/debug/pipeline`);
    let readings = 0;
    page.on("response", (r) => (readings += r.url().endsWith("/metrics") ? 1 : 0));
    await page.waitForSelector(".stages");
    await until("the page has the state three times", () => readings >= 3, 20_000);
    assert.equal(await page.getByText("KV slabs by state").count(), 0);
    await page.goto(`${gateway.url}/debug/kv`);
    await page.getByText("This process has no KV memory: it does not compute.").waitFor();
    await page.accessible();
    page.quiet();
    await servers.kill(gateway);
  });

  test("fits a phone in the dark", async (t) => {
    for (const name of ["pipeline", "kv"]) {
      const page = await visit(browser, t, `${slow.url}/debug/${name}`, { size: "phone", dark: true });
      await page.waitForSelector("section .legend");
      await page.accessible();
      await page.fits();
      await page.shot(`${name}-phone`);
      page.quiet();
    }
  });
});
