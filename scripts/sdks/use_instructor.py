#!/usr/bin/env python3
"""instructor: objects of pydantic models through forced calls and through schemas; sync, async, streamed, lists; Anthropic's client too."""
from typing import Literal

import anthropic
import instructor
import openai
from pydantic import BaseModel, Field

from cases import BASE_URL, KEY, MODEL, TURNS, holds, run


class Pick(BaseModel):
    color: Literal["red", "green", "blue"]
    number: int = Field(ge=1, le=99)
    words: list[str] = Field(max_length=2)


class Short(BaseModel):
    color: Literal["red", "green", "blue"]
    number: int = Field(ge=1, le=99)


ASK = {"model": MODEL, "messages": TURNS, "max_tokens": 300, "temperature": 1, "seed": 3, "max_retries": 0}
PLAIN = openai.OpenAI(base_url=BASE_URL + "/v1", api_key=KEY, max_retries=0)
ASYNC = openai.AsyncOpenAI(base_url=BASE_URL + "/v1", api_key=KEY, max_retries=0)


def client(mode=instructor.Mode.JSON_SCHEMA):
    return instructor.from_openai(PLAIN, mode=mode)


def schema():
    a = client().chat.completions.create(response_model=Short, **ASK)
    holds(isinstance(a, Short), a)


def forced_call():
    a = client(instructor.Mode.TOOLS).chat.completions.create(response_model=Short, parallel_tool_calls=False, **ASK)
    holds(isinstance(a, Short), a)


def strict_call():
    a = client(instructor.Mode.TOOLS_STRICT).chat.completions.create(response_model=Short, parallel_tool_calls=False, **ASK)
    holds(isinstance(a, Short), a)


def with_completion():
    a, answer = client().chat.completions.create_with_completion(response_model=Short, **ASK)
    holds(isinstance(a, Short) and answer.usage.completion_tokens > 0, answer)


def partial():
    parts = list(client().chat.completions.create_partial(response_model=Short, **ASK))
    holds(len(parts) > 1 and parts[-1].number is not None and parts[-1].color is not None, parts)


def nested():
    a = client().chat.completions.create(response_model=Pick, **{**ASK, "temperature": 0.3})
    holds(isinstance(a, Pick) and len(a.words) <= 2, a)


async def asynchronous():
    a = await instructor.from_openai(ASYNC, mode=instructor.Mode.JSON_SCHEMA).chat.completions.create(response_model=Short, **ASK)
    holds(isinstance(a, Short), a)


def messages():
    c = instructor.from_anthropic(anthropic.Anthropic(base_url=BASE_URL, api_key=KEY, max_retries=0), mode=instructor.Mode.ANTHROPIC_TOOLS)
    ask = {"model": MODEL, "messages": TURNS[1:], "max_tokens": 300, "max_retries": 0}
    holds(isinstance(c.messages.create(response_model=Short, **ask), Short), "another type")


run("instructor", [schema, forced_call, strict_call, with_completion, partial, nested, asynchronous, messages])
