// Vercel's AI SDK with its provider for servers of OpenAI's API: texts, streams, settings, objects, and a loop of tool calls.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { answer, apiKey, baseURL, model, question, run } from "./cases.mjs";

const provider = createOpenAICompatible({ name: "millrace", baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true });
const ask = { model: provider(model), system: "You are helpful.", prompt: question, temperature: 0, maxOutputTokens: 100, maxRetries: 0 };
const pick = z.object({ color: z.enum(["red", "green"]), number: z.number().int().min(1).max(99) });

function alarm(heard) {
  return tool({ description: "Sets an alarm.", inputSchema: z.object({ hour: z.number().int().min(0).max(23) }), execute: async ({ hour }) => {
    heard.push(hour);
    return { ok: true };
  } });
}

// loop makes two steps with forced calls, and a third one with text.
const loop = (tools) => ({ ...ask, tools, temperature: 1, seed: 2, maxOutputTokens: 60, stopWhen: stepCountIs(3),
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber < 2 ? { type: "tool", toolName: "set_alarm" } : "none" }) });

function checkSteps(steps, heard) {
  assert.equal(steps.length, 3);
  assert.ok(heard.length >= 2 && heard.every((h) => Number.isInteger(h) && h >= 0 && h <= 23), `found ${heard}`);
  assert.deepEqual(steps.map((s) => s.toolCalls.length > 0), [true, true, false]);
  assert.ok(steps[2].text);
}

await run("ai", {
  async text() {
    const a = await generateText(ask);
    assert.match(a.text, new RegExp(answer));
    assert.equal(a.finishReason, "stop");
    assert.ok(a.usage.inputTokens > 0 && a.usage.outputTokens > 0);
  },
  async stream() {
    const s = streamText(ask);
    let text = "";
    for await (const part of s.textStream) text += part;
    assert.equal(text, (await generateText(ask)).text);
    assert.equal(await s.finishReason, "stop");
    assert.ok((await s.usage).outputTokens > 0);
  },
  async "the older completions"() {
    const a = await generateText({ ...ask, model: provider.completionModel(model), maxOutputTokens: 4 });
    assert.ok(a.usage.outputTokens <= 4 && a.usage.outputTokens > 0);
  },
  async settings() {
    const a = await generateText({ ...ask, maxOutputTokens: 3, topP: 0.9, seed: 1, presencePenalty: 0.1, frequencyPenalty: 0.1, temperature: 1 });
    assert.equal(a.finishReason, "length");
    const { text } = await generateText(ask);
    const word = text.split(" ")[2];
    assert.equal((await generateText({ ...ask, stopSequences: [word] })).text, text.slice(0, text.indexOf(word)));
  },
  async object() {
    const { output } = await generateText({ ...ask, output: Output.object({ schema: pick }) });
    pick.parse(output);
  },
  async "streamed object"() {
    const s = streamText({ ...ask, output: Output.object({ schema: pick }) });
    let last;
    for await (const part of s.partialOutputStream) last = part;
    pick.parse(last);
  },
  async "tool loop"() {
    const heard = [];
    checkSteps((await generateText(loop({ set_alarm: alarm(heard) }))).steps, heard);
  },
  async "streamed tool loop"() {
    const heard = [];
    const s = streamText(loop({ set_alarm: alarm(heard) }));
    await s.consumeStream();
    checkSteps(await s.steps, heard);
  },
  async "a cancelled stream"() {
    const stop = new AbortController();
    const s = streamText({ ...ask, maxOutputTokens: 2000, abortSignal: stop.signal });
    for await (const part of s.fullStream) {
      if (part.type === "text-delta") stop.abort();
      if (part.type === "abort") return;
    }
    assert.fail("found the end of the stream, expected an abort");
  },
  async error() {
    await assert.rejects(generateText({ ...ask, model: provider("nobody") }), (e) => e.statusCode === 404);
  },
});
