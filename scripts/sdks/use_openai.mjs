// OpenAI's client for Node: every parameter of a chat and of a completion, whole and streamed; responses, tools, schemas, errors.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { answer, apiKey, baseURL, model, question, run, turns } from "./cases.mjs";

const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const ask = { model, messages: turns, temperature: 0, max_tokens: 60 };
const alarm = { type: "function", function: { name: "set_alarm", strict: true, parameters: {
  type: "object", additionalProperties: false, required: ["hour", "loud"],
  properties: { hour: { type: "integer", minimum: 0, maximum: 23 }, loud: { type: "boolean" } } } } };
const forced = { tools: [alarm], tool_choice: { type: "function", function: { name: "set_alarm" } }, parallel_tool_calls: false, max_tokens: 200 };
const pick = { type: "object", additionalProperties: false, required: ["color"], properties: { color: { enum: ["red", "green"] } } };

// What a request may have beside ask, in OpenAI's names and in vLLM's.
const both = [
  {}, { temperature: 1, seed: 7 }, { top_p: 0.5, temperature: 1, seed: 7 }, { n: 2, temperature: 1, seed: 7 }, { stop: ["is"] }, { stop: "is" },
  { presence_penalty: 1 }, { frequency_penalty: -1 }, { logit_bias: { 5: -100 } }, { user: "me" }, { max_tokens: 3 },
  { top_k: 3 }, { min_p: 0.1 }, { typical_p: 0.9 }, { repetition_penalty: 1.1 }, { stop_token_ids: [7] }, { ignore_eos: true, max_tokens: 20 },
  { include_stop_str_in_output: true, stop: ["is"] }, { skip_special_tokens: false }, { return_token_ids: true }, { cache_salt: "salt" }, { priority: 3 },
  { timeout: 60 }, { request_id: null }, { response_format: { type: "text" } }, { response_format: { type: "json_object" } },
  { response_format: { type: "json_schema", json_schema: { name: "pick", strict: true, schema: pick } } },
  { guided_choice: ["yes", "no"] }, { guided_regex: "[a-c]{3}" }, { guided_json: pick }, { guided_grammar: "root ::= \"a\" | \"b\"" },
  { structured_outputs: { choice: ["yes", "no"] } }, { use_beam_search: true, num_beams: 2, max_tokens: 6 },
  { use_beam_search: true, best_of: 3, n: 2, length_penalty: 0.5, early_stopping: true, max_tokens: 6 },
];
const chatOnly = [
  { max_tokens: undefined, max_completion_tokens: 3 }, { logprobs: true, top_logprobs: 2 }, { metadata: { k: "v" } }, { store: false },
  { service_tier: "auto" }, { reasoning_effort: "low" }, { add_generation_prompt: true }, { chat_template_kwargs: { enable_thinking: false } },
  { messages: [...turns, { role: "assistant", content: "The capital" }], add_generation_prompt: false, continue_final_message: true },
  { ...forced }, { tools: [alarm], tool_choice: "none" },
];
const textOnly = [{ logprobs: 2 }, { echo: true }, { prompt: ["One,", "Two,"] }, { prompt: [5, 6, 7] }, { prompt: [[5, 6], [7]] }];

// gather adds up the choices of a stream: text, finish reason, arguments of calls.
async function gather(stream) {
  const choices = [];
  let usage;
  for await (const chunk of stream) {
    usage = chunk.usage ?? usage;
    for (const { index, delta, text, finish_reason } of chunk.choices) {
      const c = (choices[index] ??= { text: "", finish: null, calls: [] });
      c.text += delta?.content ?? text ?? "";
      c.finish = finish_reason ?? c.finish;
      for (const t of delta?.tool_calls ?? []) c.calls[t.index] = (c.calls[t.index] ?? "") + (t.function.arguments ?? "");
    }
  }
  return { choices, usage };
}

const whole = (a) => a.choices.map((c) => ({ text: c.message?.content ?? c.text ?? "", finish: c.finish_reason,
  calls: (c.message?.tool_calls ?? []).map((t) => t.function.arguments) }));

// same sends a request whole and as a stream, and expects the same answer.
async function same(endpoint, request) {
  const a = await endpoint.create(request);
  const { choices, usage } = await gather(await endpoint.create({ ...request, stream: true, stream_options: { include_usage: true } }));
  assert.deepEqual(choices, whole(a));
  assert.equal(usage.completion_tokens, a.usage.completion_tokens);
  return a;
}

async function refused(status, param, request) {
  for (const stream of [false, true]) {
    await assert.rejects(client.chat.completions.create({ ...ask, ...request, stream }), (e) => e.status === status && e.param === param);
  }
}

const cases = {
  async chat() {
    const a = await same(client.chat.completions, ask);
    assert.match(a.choices[0].message.content, new RegExp(answer));
  },
  async "stream helper"() {
    const s = client.chat.completions.stream(ask);
    const final = await s.finalChatCompletion();
    assert.match(final.choices[0].message.content, new RegExp(answer));
  },
  async "parsed by zod"() {
    const a = await client.chat.completions.parse({ ...ask, response_format: zodResponseFormat(z.object({ color: z.enum(["red", "green"]) }), "pick") });
    assert.ok(["red", "green"].includes(a.choices[0].message.parsed.color));
  },
  async "tool loop"() {
    const messages = [...turns];
    for (let turn = 0; turn < 2; turn++) {
      const { message, finish_reason } = (await same(client.chat.completions, { ...ask, ...forced, messages, temperature: 1, seed: turn })).choices[0];
      assert.equal(finish_reason, "tool_calls");
      assert.equal(message.tool_calls.length, 1);
      const { hour, loud } = JSON.parse(message.tool_calls[0].function.arguments);
      assert.ok(hour >= 0 && hour <= 23 && typeof loud === "boolean");
      messages.push(message, { role: "tool", tool_call_id: message.tool_calls[0].id, content: "{\"ok\": true}" });
    }
    const last = await client.chat.completions.create({ ...ask, messages, tools: [alarm], tool_choice: "none" });
    assert.ok(last.choices[0].message.content);
  },
  async responses() {
    const request = { model, instructions: "You are helpful.", input: question, temperature: 0 };
    const a = await client.responses.create(request);
    assert.match(a.output_text, new RegExp(answer));
    let text = "";
    for await (const e of await client.responses.create({ ...request, stream: true })) if (e.type === "response.output_text.delta") text += e.delta;
    assert.equal(text, a.output_text);
  },
  async models() {
    assert.deepEqual((await client.models.list()).data.map((m) => m.id), [model]);
    assert.equal((await client.models.retrieve(model)).id, model);
  },
  async errors() {
    await refused(404, "model", { model: "nobody" });
    await refused(400, "temperature", { temperature: -1 });
    await refused(400, "messages", { messages: [] });
  },
};
for (const p of [...both, ...chatOnly]) cases[`chat with ${JSON.stringify(p)}`] = () => same(client.chat.completions, { ...ask, ...p });
for (const p of [...both, ...textOnly]) {
  cases[`completion with ${JSON.stringify(p)}`] = () => same(client.completions, { model, prompt: "The", temperature: 0, max_tokens: 12, ...p });
}
await run("openai", cases);
