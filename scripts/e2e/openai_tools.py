#!/usr/bin/env python3
"""Runs a tool-calling loop against a running server with OpenAI's own Python SDK.

Calls are forced (tool_choice required, and by name), so that a model that knows no tools makes them: what is checked is
that they are valid, whole and streamed, sync and async. Needs: pip install openai.

    scripts/e2e/openai_tools.py --base-url http://127.0.0.1:8080
"""
import argparse
import asyncio
import json
import sys

import openai

from checks import Report

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city", "strict": True,
    "parameters": {"type": "object", "additionalProperties": False, "required": ["city", "days", "unit"], "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}}}}
ALARM = {"type": "function", "function": {
    "name": "set_alarm",
    "parameters": {"type": "object", "additionalProperties": False, "required": ["hour", "loud"], "properties": {
        "hour": {"type": "integer", "minimum": 0, "maximum": 23}, "loud": {"type": "boolean"}}}}}
TOOLS = [WEATHER, ALARM]
LIMIT = 400  # tokens of an answer


def valid(call):
    """Why a call is not valid; None if it is."""
    try:
        a = json.loads(call.function.arguments)
    except ValueError as e:
        return str(e)
    if call.type != "function" or not call.id:
        return f"type {call.type!r}, id {call.id!r}"
    if call.function.name == "get_weather":
        ok = set(a) == {"city", "days", "unit"} and isinstance(a["city"], str) and len(a["city"]) <= 12 \
            and type(a["days"]) is int and 1 <= a["days"] <= 9 and a["unit"] in ("celsius", "fahrenheit")
    elif call.function.name == "set_alarm":
        ok = set(a) == {"hour", "loud"} and type(a["hour"]) is int and 0 <= a["hour"] <= 23 and type(a["loud"]) is bool
    else:
        return f"name {call.function.name!r}"
    return None if ok else f"arguments {a!r}"


class Calls(Report):
    """Counts the checks of tool calls, too."""

    def calls(self, what, message, finish, only=None, single=False):
        """Checks the calls of an answer and returns those that are complete. A model that knows no tools may make
        many calls, until the limit cuts the last one."""
        calls = message.tool_calls or []
        self.true(f"{what}: calls", len(calls) == 1 if single else len(calls) > 0, message)
        if not single and finish == "length":
            calls = calls[:-1]
        else:
            self.true(f"{what}: finish_reason", finish == "tool_calls", finish)
            self.true(f"{what}: no text", not message.content, message.content)
        self.true(f"{what}: ids differ", len({c.id for c in calls}) == len(calls), calls)
        for c in calls:
            self.true(f"{what}: valid", valid(c) is None, valid(c))
            self.true(f"{what}: allowed", only is None or c.function.name == only, c.function.name)
        return calls


def gather(chunks):
    """The message and the finish reason of a stream, as a client without helpers adds them up."""
    content, calls, finish = "", {}, None
    for chunk in chunks:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            finish = choice.finish_reason or finish
            for part in choice.delta.tool_calls or []:
                c = calls.setdefault(part.index, {"id": "", "type": "", "name": "", "arguments": ""})
                c["id"] += part.id or ""
                c["type"] += part.type or ""
                c["name"] += part.function.name or ""
                c["arguments"] += part.function.arguments or ""
    Call = lambda c: openai.types.chat.ChatCompletionMessageToolCall(  # noqa: E731
        id=c["id"], type=c["type"], function={"name": c["name"], "arguments": c["arguments"]})
    message = openai.types.chat.ChatCompletionMessage(role="assistant", content=content, tool_calls=[Call(calls[i]) for i in sorted(calls)] or None)
    return message, finish


def loop(checks, client, model, stream):
    """A conversation of three turns: a call, its result, another call, its result, text."""
    messages = [{"role": "user", "content": "What is the weather?"}]
    for turn, choice in enumerate(["required", {"type": "function", "function": {"name": "set_alarm"}}]):
        request = dict(model=model, messages=messages, tools=TOOLS, tool_choice=choice, max_tokens=LIMIT, temperature=1, seed=turn + 1)
        what = f"turn {turn}, stream {stream}"
        if stream:
            message, finish = gather(client.chat.completions.create(stream=True, **request))
        else:
            c = client.chat.completions.create(**request).choices[0]
            message, finish = c.message, c.finish_reason
        calls = checks.calls(what, message, finish, only=None if turn == 0 else "set_alarm", single=turn == 1)[:2]
        messages.append({"role": "assistant", "content": message.content, "tool_calls": [c.model_dump() for c in calls]})
        for c in calls:
            messages.append({"role": "tool", "tool_call_id": c.id, "content": json.dumps({"ok": True})})
    last = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, tool_choice="none", max_tokens=16)
    checks.true("the last turn has text", last.choices[0].message.tool_calls is None and last.choices[0].finish_reason in ("stop", "length"), last)


def forms(checks, client, model):
    hi = [{"role": "user", "content": "hi"}]
    request = dict(model=model, messages=hi, tools=TOOLS, max_tokens=LIMIT, temperature=1)
    a = client.chat.completions.create(tool_choice="required", n=3, seed=5, **request)
    for c in a.choices:
        checks.calls(f"choice {c.index} of 3", c.message, c.finish_reason)
    again = client.chat.completions.create(tool_choice="required", n=3, seed=5, **request)
    arguments = lambda answer: [[c.function.arguments for c in ch.message.tool_calls] for ch in answer.choices]  # noqa: E731
    checks.true("the same seed makes the same calls", arguments(a) == arguments(again), (arguments(a), arguments(again)))
    for seed in range(8):
        a = client.chat.completions.create(tool_choice="required", parallel_tool_calls=False, seed=seed, logprobs=True, top_logprobs=1, **request)
        checks.calls(f"one call, seed {seed}", a.choices[0].message, a.choices[0].finish_reason, single=True)
        checks.true("log probabilities of all tokens", len(a.choices[0].logprobs.content) == a.usage.completion_tokens,
                    (len(a.choices[0].logprobs.content), a.usage.completion_tokens))
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}}
    a = client.chat.completions.create(tool_choice=allowed, seed=1, **request)
    checks.calls("allowed tools", a.choices[0].message, a.choices[0].finish_reason, only="get_weather")
    with client.chat.completions.stream(tool_choice="required", seed=2, model=model, messages=hi, tools=TOOLS, max_tokens=LIMIT,
                                        parallel_tool_calls=False) as s:
        for _ in s:
            pass
        final = s.get_final_completion().choices[0]
    checks.calls("the SDK's stream helper", final.message, final.finish_reason)
    auto = client.chat.completions.create(tool_choice="auto", **request).choices[0]
    checks.true("auto", auto.finish_reason in ("stop", "length", "tool_calls"), auto)


def cut(checks, client, model):
    a = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}], tools=TOOLS, max_tokens=12,
                                       tool_choice={"type": "function", "function": {"name": "get_weather"}})
    checks.true("a call that is cut ends with length", a.choices[0].finish_reason == "length", a)


def errors(checks, client, model):
    hi = [{"role": "user", "content": "hi"}]
    for what, param, request in [
        ("an unknown name", "tool_choice.function.name", dict(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "fly"}})),
        ("no tools", "tool_choice", dict(tool_choice="required")),
        ("a name twice", "tools[1].function.name", dict(tools=[WEATHER, WEATHER])),
        ("a bad schema", "tools[0].function.parameters", dict(tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "nonsense"}}}}}],
                                       tool_choice="required")),
    ]:
        try:
            client.chat.completions.create(model=model, messages=hi, **request)
            checks.true(f"error {what}", False, "an answer")
        except openai.BadRequestError as e:
            checks.true(f"error {what}: field", e.param == param, e.param)


async def asynchronous(checks, url, model):
    client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
    request = dict(model=model, messages=[{"role": "user", "content": "hi"}], tools=TOOLS, tool_choice="required", max_tokens=LIMIT, temperature=1)
    answers = await asyncio.gather(*[client.chat.completions.create(seed=i, **request) for i in range(6)])
    for i, a in enumerate(answers):
        checks.calls(f"async {i}", a.choices[0].message, a.choices[0].finish_reason)
    chunks = [c async for c in await client.chat.completions.create(seed=0, stream=True, **request)]
    message, finish = gather(chunks)
    checks.calls("async stream", message, finish)
    whole = [(c.id != "", c.function.name, c.function.arguments) for c in answers[0].choices[0].message.tool_calls]
    checks.true("the stream is the whole answer", [(c.id != "", c.function.name, c.function.arguments) for c in message.tool_calls] == whole, message)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--base-url", required=True, help="of the server, without /v1")
    p.add_argument("--model", default="tiny-chat")
    args = p.parse_args()
    url = args.base_url.rstrip("/") + "/v1"
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
    checks = Calls()
    for stream in (False, True):
        loop(checks, client, args.model, stream)
    forms(checks, client, args.model)
    cut(checks, client, args.model)
    errors(checks, client, args.model)
    asyncio.run(asynchronous(checks, url, args.model))
    for line in checks.failed:
        print("FAILED", line)
    print(f"openai sdk {openai.__version__}: {checks.checked} checks, {len(checks.failed)} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
