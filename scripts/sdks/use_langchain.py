#!/usr/bin/env python3
"""LangChain's chat model for OpenAI: invoke, stream, batch, structured output, and a loop of tool calls; sync and async."""
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

from cases import ANSWER, BASE_URL, KEY, MODEL, QUESTION, equal, holds, run

ASK = [SystemMessage("You are helpful."), HumanMessage(QUESTION)]


class Pick(BaseModel):
    """A color and a number."""
    color: str = Field(pattern="^(red|green|blue)$")
    number: int = Field(ge=1, le=99)


@tool
def set_alarm(hour: int, loud: bool) -> str:
    """Sets an alarm."""
    return f"set for {hour}, loud {loud}"


def llm(**settings):
    return ChatOpenAI(model=MODEL, base_url=BASE_URL + "/v1", api_key=KEY, max_retries=0, **{"temperature": 0, "max_tokens": 100, **settings})


def invoke():
    a = llm().invoke(ASK)
    holds(ANSWER in a.content, a)
    equal(a.response_metadata["finish_reason"], "stop")
    holds(a.usage_metadata["output_tokens"] > 0, a.usage_metadata)


def stream():
    parts = list(llm(stream_usage=True).stream(ASK))
    equal("".join(p.content for p in parts), llm().invoke(ASK).content)
    holds(len(parts) > 3, parts)
    holds(sum((p.usage_metadata or {}).get("output_tokens", 0) for p in parts) > 0, parts)


async def asynchronous():
    a = await llm().ainvoke(ASK)
    equal("".join([p.content async for p in llm().astream(ASK)]), a.content)
    equal([m.content for m in await llm().abatch([ASK, ASK])], [a.content, a.content])


def settings():
    a = llm(max_tokens=3, seed=7, top_p=0.9, temperature=1, frequency_penalty=0.5, presence_penalty=0.5, logprobs=True, top_logprobs=2,
            logit_bias={5: 1}).invoke(ASK)
    equal(a.response_metadata["finish_reason"], "length")
    equal([len(t["top_logprobs"]) for t in a.response_metadata["logprobs"]["content"]], [2, 2, 2])
    whole = llm().invoke(ASK).content
    word = whole.split()[2]
    equal(llm(stop=[word]).invoke(ASK).content, whole[:whole.index(word)])
    equal(len(llm(n=3, temperature=1).generate([ASK]).generations[0]), 3)


def responses():
    a = llm(use_responses_api=True).invoke(ASK)
    equal(a.text, llm().invoke(ASK).content)
    equal("".join(p.text for p in llm(use_responses_api=True).stream(ASK)), a.text)


def structured_by_schema():
    for method in ("json_schema", "function_calling"):
        a = llm(temperature=1, seed=1).with_structured_output(Pick, method=method).invoke(ASK)
        holds(isinstance(a, Pick), a)
    a = list(llm(temperature=1, seed=1).with_structured_output(Pick, method="json_schema").stream(ASK))[-1]
    holds(isinstance(a, Pick), a)


async def structured_async():
    holds(isinstance(await llm().with_structured_output(Pick).ainvoke(ASK), Pick), "another type")


def tool_loop():
    forced = llm(temperature=1, seed=2).bind_tools([set_alarm], tool_choice="set_alarm", parallel_tool_calls=False)
    messages = list(ASK)
    for _ in range(2):
        a = forced.invoke(messages)
        equal([c["name"] for c in a.tool_calls], ["set_alarm"])
        messages += [a, *[ToolMessage(set_alarm.invoke(c["args"]), tool_call_id=c["id"]) for c in a.tool_calls]]
    last = llm().bind_tools([set_alarm], tool_choice="none").invoke(messages)
    equal(last.tool_calls, [])
    holds(last.content, last)


def tool_stream():
    whole = None
    for part in llm(temperature=1, seed=2).bind_tools([set_alarm], tool_choice="required", parallel_tool_calls=False).stream(ASK):
        whole = part if whole is None else whole + part
    equal([c["name"] for c in whole.tool_calls], ["set_alarm"])
    holds(set_alarm.invoke(whole.tool_calls[0]["args"]).startswith("set for"), whole)


run("langchain-openai", [invoke, stream, asynchronous, settings, responses, structured_by_schema, structured_async, tool_loop, tool_stream])
