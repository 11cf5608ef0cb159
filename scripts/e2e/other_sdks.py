#!/usr/bin/env python3
"""Checks a running server with the official Python clients of Anthropic and Ollama, and OpenAI's Responses API.

All get the same text as the chat API gives. Needs: pip install anthropic ollama openai.

    scripts/e2e/other_sdks.py --base-url http://127.0.0.1:8080 [--api-key KEY]
"""
import argparse
import asyncio
import sys

import anthropic
import ollama
import openai

from checks import Report

MODEL = "tiny-chat"
QUESTION = "What is the capital of France?"


def reference(client, **settings):
    messages = [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": QUESTION}]
    return client.chat.completions.create(model=MODEL, messages=messages, temperature=0, **settings)


def check_anthropic(report, client, want):
    call = {"model": MODEL, "system": "You are helpful.", "messages": [{"role": "user", "content": QUESTION}], "extra_body": {"temperature": 0}}
    m = client.messages.create(max_tokens=100, **call)
    report.equal("messages: text", "".join(b.text for b in m.content if b.type == "text"), want.choices[0].message.content)
    report.equal("messages: stop reason", m.stop_reason, "end_turn")
    report.true("messages: id", m.id.startswith("msg_"), m.id)
    usage = m.usage
    report.equal("messages: input tokens", usage.input_tokens + usage.cache_read_input_tokens, want.usage.prompt_tokens)
    report.equal("messages: output tokens", usage.output_tokens, want.usage.completion_tokens)

    with client.messages.stream(max_tokens=100, **call) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    report.equal("messages: streamed text", text, want.choices[0].message.content)
    report.equal("messages: final message", final.content[0].text, text)
    report.equal("messages: streamed stop reason", final.stop_reason, "end_turn")
    report.equal("messages: streamed output tokens", final.usage.output_tokens, want.usage.completion_tokens)

    cut = client.messages.create(max_tokens=2, **call)
    report.equal("messages: cut", (cut.stop_reason, cut.usage.output_tokens), ("max_tokens", 2))
    word = want.choices[0].message.content.split()[2]
    stopped = client.messages.create(max_tokens=100, stop_sequences=[word], **call)
    report.equal("messages: stop sequence", (stopped.stop_reason, stopped.stop_sequence), ("stop_sequence", word))
    with client.messages.stream(max_tokens=100, stop_sequences=[word], **call) as stream:
        stopped = stream.get_final_message()
    report.equal("messages: streamed stop sequence", (stopped.stop_reason, stopped.stop_sequence), ("stop_sequence", word))

    del call["extra_body"]
    count = client.messages.count_tokens(**call)
    report.equal("count_tokens", count.input_tokens, want.usage.prompt_tokens)
    for what, change, kind in [
        ("unknown model", {"model": "nobody"}, anthropic.NotFoundError),
        ("bad role", {"messages": [{"role": "robot", "content": "x"}]}, anthropic.BadRequestError),
        ("image", {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}]}]},
         anthropic.BadRequestError),
    ]:
        try:
            client.messages.create(**{**call, "max_tokens": 9, **change})
            report.true(f"messages: {what}", False, "an answer")
        except kind as e:
            report.true(f"messages: {what}: type", e.body["error"]["type"] in ("not_found_error", "invalid_request_error"), e.body)


async def check_anthropic_async(report, client, want):
    call = {"model": MODEL, "system": "You are helpful.", "messages": [{"role": "user", "content": QUESTION}], "extra_body": {"temperature": 0}}
    m = await client.messages.create(max_tokens=100, **call)
    report.equal("messages, async: text", m.content[0].text, want.choices[0].message.content)
    async with client.messages.stream(max_tokens=100, **call) as stream:
        text = "".join([t async for t in stream.text_stream])
    report.equal("messages, async: streamed text", text, m.content[0].text)


def check_ollama(report, client, want):
    messages = [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": QUESTION}]
    a = client.chat(MODEL, messages, options={"temperature": 0})
    report.equal("chat: text", a.message.content, want.choices[0].message.content)
    report.equal("chat: done", (a.done, a.done_reason), (True, "stop"))
    report.equal("chat: counts", (a.prompt_eval_count, a.eval_count), (want.usage.prompt_tokens, want.usage.completion_tokens))
    parts = list(client.chat(MODEL + ":latest", messages, options={"temperature": 0}, stream=True))
    report.equal("chat: streamed text", "".join(p.message.content for p in parts), a.message.content)
    report.equal("chat: last part", (parts[-1].done, parts[-1].done_reason, parts[-1].eval_count), (True, "stop", a.eval_count))
    report.true("chat: durations", parts[-1].total_duration > 0 and parts[-1].eval_duration > 0, parts[-1])

    g = client.generate(MODEL, QUESTION, system="You are helpful.", options={"temperature": 0})
    report.equal("generate: text", g.response, a.message.content)
    g = client.generate(MODEL, QUESTION, system="You are helpful.", options={"temperature": 0, "num_predict": 3})
    report.equal("generate: cut", (g.done_reason, g.eval_count), ("length", 3))
    raw = "".join(p.response for p in client.generate(MODEL, "The capital of", raw=True, stream=True, options={"temperature": 0, "num_predict": 5}))
    report.true("generate: raw text", raw != "", raw)

    loaded = client.generate(MODEL, "")
    report.equal("generate: load", (loaded.response, loaded.done_reason, loaded.eval_count), ("", "load", None))
    loaded = client.chat(MODEL, [])
    report.equal("chat: load", (loaded.message.content, loaded.done_reason), ("", "load"))
    report.true("chat: durations of a whole answer", a.prompt_eval_duration > 0 and a.eval_duration > 0, a)
    scored = client.chat(MODEL, messages, options={"temperature": 0}, logprobs=True, top_logprobs=2)
    text = "".join(p.token for p in scored.logprobs)  # with the token that ends the answer
    report.true("chat: log probabilities", text.startswith(a.message.content) and len(scored.logprobs) == a.eval_count, text)
    report.true("chat: alternatives", all(len(p.top_logprobs) == 2 and p.logprob <= 0 for p in scored.logprobs), scored.logprobs)
    scored = list(client.generate(MODEL, "The capital of", raw=True, stream=True, logprobs=True, options={"temperature": 0, "num_predict": 5}))
    report.equal("generate: log probabilities", sum(len(p.logprobs or []) for p in scored), 5)

    report.equal("tags", [m.model for m in client.list().models], [MODEL])
    report.equal("ps", [m.model for m in client.ps().models], [MODEL])
    report.true("show", "completion" in client.show(MODEL).capabilities)
    for what, run in [
        ("unknown model", lambda: client.chat("nobody", messages)),
        ("bad option", lambda: client.chat(MODEL, messages, options={"temperature": 9})),
    ]:
        try:
            run()
            report.true(f"chat: {what}", False, "an answer")
        except ollama.ResponseError as e:
            report.true(f"chat: {what}: status", e.status_code in (400, 404) and e.error, (e.status_code, e.error))


def check_responses(report, client, want):
    call = {"model": MODEL, "instructions": "You are helpful.", "input": QUESTION, "temperature": 0}
    text = want.choices[0].message.content
    r = client.responses.create(**call)
    report.equal("responses: text", r.output_text, text)
    report.equal("responses: status", (r.status, r.output[0].type, r.output[0].role), ("completed", "message", "assistant"))
    report.equal("responses: usage", (r.usage.input_tokens, r.usage.output_tokens), (want.usage.prompt_tokens, want.usage.completion_tokens))
    with client.responses.stream(**call) as stream:
        events = list(stream)
        final = stream.get_final_response()
    report.equal("responses: streamed text", "".join(e.delta for e in events if e.type == "response.output_text.delta"), text)
    report.equal("responses: final response", (final.output_text, final.status, final.usage.output_tokens), (text, "completed", r.usage.output_tokens))
    cut = client.responses.create(**call, max_output_tokens=2, metadata={"k": "v"})
    report.equal("responses: cut", (cut.status, cut.incomplete_details.reason, cut.metadata), ("incomplete", "max_output_tokens", {"k": "v"}))
    again = client.responses.create(model=MODEL, temperature=0, input=[
        {"role": "system", "content": "You are helpful."}, {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}])
    report.equal("responses: items", again.output_text, text)
    for what, change in [("conversation", {"conversation": "conv_1"}), ("background", {"background": True, "store": False}),
                         ("forced hosted tool", {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}})]:
        try:
            client.responses.create(**{**call, **change})
            report.true(f"responses: {what}", False, "an answer")
        except openai.BadRequestError as e:
            report.true(f"responses: {what}: names the field", e.param, e.body)
    ignored = client.responses.with_raw_response.create(**call, tools=[{"type": "web_search"}])
    report.equal("responses: a hosted tool is ignored by name", (ignored.headers["Millrace-Ignored"], ignored.parse().output_text), ("tools[0] (web_search)", text))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--base-url", required=True)
    p.add_argument("--api-key", default="none")
    args = p.parse_args()
    report = Report()
    client = openai.OpenAI(base_url=args.base_url + "/v1", api_key=args.api_key)
    want = reference(client)
    check_responses(report, client, want)
    check_anthropic(report, anthropic.Anthropic(base_url=args.base_url, api_key=args.api_key), want)
    asyncio.run(check_anthropic_async(report, anthropic.AsyncAnthropic(base_url=args.base_url, api_key=args.api_key), want))
    check_ollama(report, ollama.Client(host=args.base_url, headers={"Authorization": "Bearer " + args.api_key}), want)
    print(f"{report.checked} checks, {len(report.failed)} failed")
    for f in report.failed:
        print("  " + f)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
