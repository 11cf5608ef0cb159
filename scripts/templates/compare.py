#!/usr/bin/env python3
"""Renders a folder of chat templates with transformers and with Millrace, and lists the differences.

    python3 -m venv build/templates-venv
    build/templates-venv/bin/pip install transformers==5.24.0 jinja2
    build/templates-venv/bin/python scripts/templates/compare.py FOLDER [--show N]

FOLDER has *.jinja files. Each is rendered over the conversations below with several options, in two ways: the engine
alone, over the variables that transformers hands to the template; and the whole path of a request, from its JSON.
Where a server hands over other content by design (a list for a template that reads parts, a joined text for one that
reads text), the request is compared with transformers over that content, and counted apart.
"""

import argparse
import collections
import copy
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "fixtures"))

import transformers.utils.chat_template_utils as chat_template_utils  # noqa: E402

from make_templates import ADD, CONVERSATIONS, DEMO, MORE_CONVERSATIONS, TOKENS, WEATHER, FixedClock, call, outcome, turn  # noqa: E402

IMAGE = {"type": "image"}
URL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
CALLS = [call("get_weather", {"place": "Zürich", "days": [1, 2]}, id="abc123XYZ")]


def text(*parts):
    return [{"type": "text", "text": part} for part in parts]


MORE = {
    "parts of all": [turn("system", text("s1", "s2")), turn("user", text("u")), turn("assistant", text("a")), turn("user", text("v", "w"))],
    "image": [turn("user", [IMAGE, *text("What is it?")])],
    "image url": [turn("system", "s"), turn("user", [*text("See"), URL, *text("this")]), turn("assistant", "A cat."), turn("user", "Sure?")],
    "spoken call": [
        turn("user", "Weather?"),
        turn("assistant", "Let me see.", reasoning_content="I need the tool.", tool_calls=CALLS),
        turn("tool", "21", name="get_weather", tool_call_id="abc123XYZ"),
    ],
    "result of parts": [
        turn("user", "Weather?"),
        turn("assistant", "", tool_calls=CALLS),
        turn("tool", text("21", "°C"), name="get_weather", tool_call_id="abc123XYZ"),
    ],
    "two results": [
        turn("user", "q"),
        {"role": "assistant", "tool_calls": [*CALLS, call("add", {"a": 1, "b": -2.5}, id="abc123XY2")]},
        turn("tool", "first", name="get_weather", tool_call_id="abc123XYZ"),
        turn("tool", "second", name="add", tool_call_id="abc123XY2"),
        turn("assistant", "Both."),
        turn("user", "And?"),
    ],
    "more numbers": [
        turn("user", "q"),
        turn("assistant", "", tool_calls=[call("f", {"n": 123456789012345678901234567890, "m": -9223372036854775809, "f": 1e-7, "g": 2.0, "none": None, "deep": [{"b": 1, "a": [True, "é\n\"'"]}]}, id="abc123XYZ")]),
        turn("tool", "ok", name="f", tool_call_id="abc123XYZ"),
    ],
    "third turn": [turn(("user", "assistant")[i % 2], f"  turn {i} \n") for i in range(5)],
}
OPTIONS = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False},
    {"add_generation_prompt": True, "tools": [WEATHER, ADD]},
    {"add_generation_prompt": True, "enable_thinking": False, "thinking": False},
    {"add_generation_prompt": True, "enable_thinking": True, "thinking": True, "reasoning_effort": "high", "documents": [{"title": "t", "text": "x", "id": 12345678901234567, "share": 1.0}]},
]


def transformers_render(template, messages, options):
    messages = chat_template_utils._normalize_chat_messages(copy.deepcopy(messages))
    return outcome(
        lambda: chat_template_utils.render_jinja_template([messages], chat_template=template, **copy.deepcopy(options), **TOKENS)[0][0]
    )


def variables(messages, options):
    """What transformers' render_jinja_template hands to the template."""
    messages = chat_template_utils._normalize_chat_messages(copy.deepcopy(messages))
    messages = chat_template_utils._alias_reasoning_fields(messages)
    return {**TOKENS, "tools": None, "documents": None, **options, "messages": messages}


def sent(messages):
    """The messages as a client sends them: the arguments of calls are text."""
    messages = copy.deepcopy(messages)
    for message in messages:
        for made in message.get("tool_calls", []):
            made["function"]["arguments"] = json.dumps(made["function"]["arguments"], ensure_ascii=False)
    return messages


def forms(messages):
    """The messages with all or some of their contents as lists, or all as text, as a server may hand them over."""

    def listed(content):
        return text(content) if isinstance(content, str) else content

    def joined(content):
        if isinstance(content, list) and all(part.get("type") == "text" for part in content):
            return "\n".join(part["text"] for part in content)
        return content

    roles = {m["role"] for m in messages}
    for change in (listed, joined):
        for chosen in [roles, *({r} for r in roles), *(roles - {r} for r in roles)]:
            yield [{**m, "content": change(m["content"])} if "content" in m and m["role"] in chosen else m for m in messages]
    # A turn with calls has no empty content.
    yield [{k: v for k, v in m.items() if not (k == "content" and v == "" and m.get("tool_calls"))} for m in messages]


def same(a, b):
    if "text" in a or "text" in b:
        return a.get("text") == b.get("text")
    return ("raised" in a) == ("raised" in b)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--show", type=int, default=2, help="differences to print of each template and way")
    args = parser.parse_args()
    chat_template_utils.datetime = FixedClock
    paths = sorted(args.folder.glob("*.jinja"))
    templates, wanted = [], []
    for path in paths:
        source = path.read_bytes().decode()
        cases = [(name, m, o) for name, m in {**CONVERSATIONS, **MORE_CONVERSATIONS, **MORE}.items() for o in OPTIONS]
        wanted.append([(name, m, o, transformers_render(source, m, o)) for name, m, o in cases])
        templates.append({"source": source, "tokens": TOKENS, "cases": [
            {"variables": variables(m, o), "messages": sent(m), "options": o} for _, m, o in cases]})
    command = ["go", "run", "./scripts/templates/render", str(DEMO / "tokenizer.json")]
    got = json.loads(subprocess.run(command, input=json.dumps(templates).encode(), stdout=subprocess.PIPE, check=True, cwd=ROOT, env=os.environ).stdout)
    report(paths, templates, wanted, got, args.show)


def report(paths, templates, wanted, got, show):
    total = collections.Counter()
    for path, template, cases, results in zip(paths, templates, wanted, got):
        here, shown = collections.Counter(), collections.Counter()
        for (name, messages, options, want), result in zip(cases, results):
            for way in ("engine", "chat"):
                have = result[way]
                if have is None:
                    here["chat: no request"] += 1
                elif same(want, have):
                    here[way + ": equal"] += 1
                elif way == "chat" and any(same(transformers_render(template["source"], form, options), have) for form in forms(messages)):
                    here["chat: equal over content in the form that it reads"] += 1
                elif "error" in want and "text" in have:
                    here[way + ": only transformers fails, with an error of Python's"] += 1
                else:
                    here[way + ": DIFFERENT"] += 1
                    shown[way] += 1
                    if shown[way] <= show:
                        print(f"--- {path.name}, {name}, {json.dumps(options, ensure_ascii=False)[:100]}, {way}")
                        print("transformers:", json.dumps(want, ensure_ascii=False)[:1500])
                        print("millrace:    ", json.dumps(have, ensure_ascii=False)[:1500])
        if any("DIFFERENT" in key for key in here):
            print(f"{path.name}: {dict(here)}")
        total += here
    print(f"{len(paths)} templates, {sum(map(len, wanted))} renders")
    for key, count in sorted(total.items()):
        print(f"  {key}: {count}")
    sys.exit(any("DIFFERENT" in key for key in total))


if __name__ == "__main__":
    main()
