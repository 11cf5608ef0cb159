#!/usr/bin/env python3
"""LiteLLM's routes to servers of OpenAI's, Anthropic's and Ollama's APIs: chats, streams, settings, tools, schemas; sync and async."""
import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no list of prices from the network

import litellm  # noqa: E402

from cases import ANSWER, BASE_URL, KEY, MODEL, QUESTION, TURNS, equal, holds, run  # noqa: E402

litellm.suppress_debug_info = True
ROUTES = {
    "openai": {"model": "openai/" + MODEL, "api_base": BASE_URL + "/v1", "api_key": KEY},
    "anthropic": {"model": "anthropic/" + MODEL, "api_base": BASE_URL, "api_key": KEY},
    "ollama": {"model": "ollama/" + MODEL, "api_base": BASE_URL},
    "ollama_chat": {"model": "ollama_chat/" + MODEL, "api_base": BASE_URL},
}
CHATS = ["openai", "anthropic", "ollama_chat"]
ASK = {"messages": TURNS, "temperature": 0, "max_tokens": 100, "num_retries": 0}
ALARM = {"type": "function", "function": {"name": "set_alarm", "description": "Sets an alarm.", "parameters": {
    "type": "object", "additionalProperties": False, "required": ["hour"], "properties": {"hour": {"type": "integer", "minimum": 0, "maximum": 23}}}}}
SCHEMA = {"type": "object", "additionalProperties": False, "required": ["color"], "properties": {"color": {"enum": ["red", "green"]}}}


def complete(route, **settings):
    return litellm.completion(**ROUTES[route], **{**ASK, **settings})


def text(route):
    return complete(route).choices[0].message.content


def chats():
    for route in ROUTES:
        a = complete(route)
        holds(ANSWER in a.choices[0].message.content, (route, a))
        equal((route, a.choices[0].finish_reason), (route, "stop"))
        holds(a.usage.prompt_tokens > 0 and a.usage.completion_tokens > 0, (route, a.usage))
    equal(text("anthropic"), text("openai"))
    equal(text("ollama_chat"), text("openai"))


def streams():
    for route in ROUTES:
        parts = list(complete(route, stream=True, stream_options={"include_usage": True}))
        equal((route, "".join(p.choices[0].delta.content or "" for p in parts if p.choices)), (route, text(route)))


async def asynchronous():
    for route in ROUTES:
        a = await litellm.acompletion(**ROUTES[route], **ASK)
        equal((route, a.choices[0].message.content), (route, text(route)))
        parts = [p async for p in await litellm.acompletion(stream=True, **ROUTES[route], **ASK)]
        equal((route, "".join(p.choices[0].delta.content or "" for p in parts if p.choices)), (route, text(route)))


def limits():
    for route in ROUTES:
        a = complete(route, max_tokens=2)
        equal((route, a.usage.completion_tokens), (route, 2))
        if route != "ollama":  # there LiteLLM says "stop" always
            equal((route, a.choices[0].finish_reason), (route, "length"))
        word = text(route).split()[2]
        equal((route, complete(route, stop=[word]).choices[0].message.content.rstrip()), (route, text(route)[:text(route).index(word)].rstrip()))


def settings_of_openai():
    a = complete("openai", n=2, seed=1, temperature=1, top_p=0.9, frequency_penalty=0.1, presence_penalty=0.1, logit_bias={"5": 1},
                 logprobs=True, top_logprobs=2, user="me", max_tokens=4)
    equal([len(c.logprobs.content[0].top_logprobs) for c in a.choices], [2, 2])


def forced_calls():
    for route in ["openai", "anthropic"]:
        for stream in (False, True):
            a = complete(route, tools=[ALARM], tool_choice={"type": "function", "function": {"name": "set_alarm"}}, parallel_tool_calls=False,
                         stream=stream, temperature=1)
            if stream:
                a = litellm.stream_chunk_builder(list(a))
            call = a.choices[0].message.tool_calls[0]
            equal((route, call.function.name), (route, "set_alarm"))
            holds(0 <= json.loads(call.function.arguments)["hour"] <= 23, (route, call))


def tool_results():
    for route in CHATS:
        turns = TURNS + [{"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "set_alarm", "arguments": '{"hour": 7}'}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": '{"ok": true}'}]
        a = complete(route, messages=turns, tools=[ALARM], max_tokens=8)
        holds(a.choices[0].message.content or a.choices[0].message.tool_calls, (route, a))


def schemas():
    for route in ["openai", "ollama_chat"]:
        wanted = {"type": "json_schema", "json_schema": {"name": "pick", "strict": True, "schema": SCHEMA}}
        a = complete(route, response_format=wanted)
        holds(json.loads(a.choices[0].message.content)["color"] in ("red", "green"), (route, a))


def texts():
    a = litellm.text_completion(model="text-completion-openai/" + MODEL, api_base=BASE_URL + "/v1", api_key=KEY, prompt="The", max_tokens=4, temperature=0)
    equal(a.usage.completion_tokens, 4)


def responses():
    a = litellm.responses(input=QUESTION, instructions="You are helpful.", temperature=0, **ROUTES["openai"])
    equal(a.output[0].content[0].text, text("openai"))


def errors():
    for route in ROUTES:
        settings = {**ROUTES[route], "model": ROUTES[route]["model"].replace(MODEL, "nobody")}
        try:
            litellm.completion(**settings, **ASK)
        except (litellm.NotFoundError, litellm.APIConnectionError) as e:
            holds("nobody" in str(e), (route, e))
        else:
            holds(False, (route, "an answer"))


run("litellm", [chats, streams, asynchronous, limits, settings_of_openai, forced_calls, tool_results, schemas, texts, responses, errors])
