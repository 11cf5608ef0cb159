#!/usr/bin/env python3
"""Checks a running server with OpenAI's own Python SDK.

Goldens of the demo model through chat, streamed chat and completions; logprobs;
shapes of errors. Needs: pip install openai.

    scripts/e2e/openai_sdk.py --base-url http://127.0.0.1:8080 [--goldens FILE]
"""
import argparse
import json
import pathlib
import re
import sys
from array import array

import openai

from checks import Report

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEAR_TIE = 0.02  # natural log; below it another arithmetic may take the other branch


class TieReport(Report):
    """Keeps near-ties, too, which do not count."""

    def __init__(self):
        super().__init__()
        self.ties = []


def generated(golden, special):
    """The golden's ids without the end-of-sequence token, which is no output of an API."""
    ids = golden["output_ids"]
    return ids[:-1] if golden["finish_reason"] == "stop" and ids[-1] in special else ids


def check_golden(report, what, golden, text, ids, finish, special):
    if golden["min_margin"] < NEAR_TIE and text != golden["output_text"]:
        report.ties.append(f"{what}: min_margin {golden['min_margin']}")
        return
    # Whether the ending token is among the ids is the server's choice; all others are not.
    trimmed = [i for i in ids if i not in special]
    report.equal(f"{what}: tokens", trimmed, [i for i in generated(golden, special) if i not in special])
    report.equal(f"{what}: text", text, golden["output_text"])
    report.equal(f"{what}: finish_reason", finish, golden["finish_reason"])


def goldens(report, client, model, path, special):
    settings = {"temperature": 0, "extra_body": {"return_token_ids": True}}
    for i, g in enumerate(json.loads(path.read_text())["goldens"]):
        limit = max(64, len(g["output_ids"]))
        if g["finish_reason"] == "length":
            limit = len(g["output_ids"])
        if g["kind"] == "chat":
            a = client.chat.completions.create(model=model, messages=g["messages"], max_tokens=limit, **settings)
            choice = a.choices[0]
            check_golden(report, f"golden {i}, chat", g, choice.message.content, choice.token_ids, choice.finish_reason, special)
            report.equal(f"golden {i}: prompt tokens", a.usage.prompt_tokens, len(g["prompt_ids"]))
            text, ids, finish, usage = "", [], None, None
            chunks = client.chat.completions.create(model=model, messages=g["messages"], max_tokens=limit, stream=True,
                                                    stream_options={"include_usage": True}, **settings)
            for chunk in chunks:
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    ids += getattr(choice, "token_ids", None) or []
                    finish = choice.finish_reason or finish
            check_golden(report, f"golden {i}, stream", g, text, ids, finish, special)
            report.equal(f"golden {i}: streamed usage", (usage.prompt_tokens, usage.completion_tokens), (a.usage.prompt_tokens, a.usage.completion_tokens))
            report.equal(f"golden {i}: cached tokens of the second prompt", usage.prompt_tokens_details.cached_tokens, len(g["prompt_ids"]) - 1)
        c = client.completions.create(model=model, prompt=g["prompt_ids"], max_tokens=limit, **settings)
        choice = c.choices[0]
        check_golden(report, f"golden {i}, completion of ids", g, choice.text, choice.token_ids, choice.finish_reason, special)


def logprobs(report, client, model, path):
    g = json.loads(path.read_text())["goldens"][0]
    a = client.chat.completions.create(model=model, messages=g["messages"], temperature=0, max_tokens=8,
                                       logprobs=True, top_logprobs=5)
    content = a.choices[0].logprobs.content
    report.equal("logprobs: entries", len(content), min(8, len(g["top_logprobs"])))
    for i, (got, want) in enumerate(zip(content, g["top_logprobs"])):
        report.equal(f"logprobs {i}: alternatives", len(got.top_logprobs), 5)
        report.equal(f"logprobs {i}: best first", got.top_logprobs[0].token, got.token)
        report.true(f"logprobs {i}: near the golden", abs(got.logprob - want[0]["logprob"]) < 0.05, got.logprob)
        report.equal(f"logprobs {i}: bytes", bytes(got.bytes).decode(), got.token)
    c = client.completions.create(model=model, prompt=g["prompt_ids"], temperature=0, max_tokens=4, logprobs=2)
    lp = c.choices[0].logprobs
    report.equal("completion logprobs: tokens", "".join(lp.tokens), c.choices[0].text)
    report.equal("completion logprobs: offsets", lp.text_offset[0], 0)
    report.true("completion logprobs: tops", all(0 < len(t) <= 2 for t in lp.top_logprobs), lp.top_logprobs)


def choices(report, client, model):
    """n, seed, stop, several prompts."""
    ask = [{"role": "user", "content": "Tell me a story."}]
    draw = lambda seed: [c.message.content for c in client.chat.completions.create(  # noqa: E731
        model=model, messages=ask, n=3, seed=seed, temperature=1, max_tokens=24).choices]
    first = draw(7)
    report.equal("the same seed, the same answers", draw(7), first)
    report.true("three choices differ", len(set(first)) > 1, first)
    a = client.completions.create(model=model, prompt=["one two three", "red green"], temperature=0, max_tokens=6)
    report.equal("several prompts: indices", [c.index for c in a.choices], [0, 1])
    whole = client.completions.create(model=model, prompt="The", temperature=0, max_tokens=12).choices[0].text
    stop = whole[len(whole) // 2:][:3]
    cut = client.completions.create(model=model, prompt="The", temperature=0, max_tokens=12, stop=[stop]).choices[0]
    report.equal("stop string", (cut.text, cut.finish_reason), (whole[:whole.index(stop)], "stop"))
    report.equal("models", [m.id for m in client.models.list()], [model])


def structured(report, client, model):
    """Answers that a schema, a list or a regular expression allows."""
    ask = [{"role": "user", "content": "Name a color and a number."}]
    schema = {"type": "object", "additionalProperties": False, "required": ["color", "number"], "properties": {
        "color": {"enum": ["red", "green", "blue"]}, "number": {"type": "integer", "minimum": 1, "maximum": 99}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "pick", "strict": True, "schema": schema}}
    a = client.chat.completions.create(model=model, messages=ask, max_tokens=200, seed=3, n=2, response_format=wanted)
    for choice in a.choices:
        report.equal("schema: finish_reason", choice.finish_reason, "stop")
        value = json.loads(choice.message.content)
        report.equal("schema: keys", list(value), ["color", "number"])
        report.true("schema: values", value["color"] in ("red", "green", "blue") and 1 <= value["number"] <= 99, value)
    text = ""
    for chunk in client.chat.completions.create(model=model, messages=ask, max_tokens=200, seed=3, response_format=wanted, stream=True):
        text += chunk.choices[0].delta.content or ""
    report.equal("schema: the stream's text", text, a.choices[0].message.content)
    for body, allowed in (({"guided_choice": ["yes", "no"]}, r"yes|no"), ({"structured_outputs": {"regex": "[a-c]{3}-[0-9]"}}, r"[a-c]{3}-[0-9]"),
                          ({"guided_grammar": "root ::= \"<\" root \">\" | \"x\""}, r"<*x>*")):
        c = client.completions.create(model=model, prompt="So", max_tokens=60, seed=5, extra_body=body).choices[0]
        report.true(f"{body}: text", c.finish_reason == "length" or re.fullmatch(allowed, c.text), c)


def vectors(report, client, model):
    """Embeddings of texts and token ids, alone and in one call."""
    texts = [f"The number of this text is {i}." for i in range(70)]
    many = client.embeddings.create(model=model, input=texts)  # the client requests base64
    report.equal("embeddings: indices", [d.index for d in many.data], list(range(len(texts))))
    report.true("embeddings: length 1", all(abs(sum(x * x for x in d.embedding) - 1) < 1e-5 for d in many.data))
    for i in (0, 41, 69):
        one = client.embeddings.create(model=model, input=texts[i], encoding_format="float").data[0].embedding
        report.equal(f"embeddings {i}: the same alone, as numbers", array("f", one), array("f", many.data[i].embedding))
    report.true("embeddings: texts differ", many.data[0].embedding != many.data[1].embedding)
    cut = client.embeddings.create(model=model, input=texts[0], dimensions=8).data[0].embedding
    scale = sum(x * x for x in many.data[0].embedding[:8]) ** 0.5
    report.true("embeddings: dimensions", len(cut) == 8 and all(abs(a - b / scale) < 1e-5 for a, b in zip(cut, many.data[0].embedding)), cut)
    ids = client.embeddings.create(model=model, input=[[5, 6, 7], [8]])
    report.equal("embeddings of ids: usage", (ids.usage.prompt_tokens, ids.usage.total_tokens), (4, 4))
    try:
        client.embeddings.create(model=model, input="a", dimensions=1 << 20)
        report.true("error dimensions", False, "an answer")
    except openai.BadRequestError as e:
        report.equal("error dimensions", e.param, "dimensions")


def scored(report, client, model):
    """Log probabilities of prompts: those that the same tokens have as an answer."""
    settings = {"model": model, "temperature": 0}
    whole = client.completions.create(prompt="The", max_tokens=6, logprobs=2, **settings).choices[0]
    text = "The" + whole.text
    ids = client.completions.create(prompt="The", max_tokens=6, extra_body={"return_token_ids": True}, **settings).choices[0].token_ids
    echoed = client.completions.create(prompt=text, max_tokens=0, echo=True, logprobs=2, **settings)
    lp = echoed.choices[0].logprobs
    report.equal("echo: text and end", (echoed.choices[0].text, echoed.choices[0].finish_reason, echoed.usage.completion_tokens), (text, "length", 0))
    report.equal("echo: the first token", lp.token_logprobs[0], None)
    if lp.tokens[-len(ids):] == whole.logprobs.tokens:  # the tokenizer may join the text in another way
        far = max(abs(a - b) for a, b in zip(lp.token_logprobs[-len(ids):], whole.logprobs.token_logprobs))
        report.true("echo: as the answer's", far < 1e-4, far)
    raw = client.completions.create(prompt=text, max_tokens=1, extra_body={"prompt_logprobs": 1}, **settings).choices[0].prompt_logprobs
    report.equal("prompt_logprobs: entries", (len(raw), raw[0]), (len(lp.tokens), None))
    report.true("prompt_logprobs: as the echo's", all(any(abs(t["logprob"] - want) < 1e-5 for t in entry.values())
                                                      for entry, want in zip(raw[1:], lp.token_logprobs[1:])), raw)
    eos = client.completions.create(prompt="The", max_tokens=40, extra_body={"min_tokens": 40}, **settings)
    report.equal("min_tokens", (eos.usage.completion_tokens, eos.choices[0].finish_reason), (40, "length"))


def errors(report, client, model):
    hi = [{"role": "user", "content": "hi"}]
    cases = [
        ("unknown model", openai.NotFoundError, 404, "model", dict(model="no-such-model", messages=hi)),
        ("no messages", openai.BadRequestError, 400, "messages", dict(model=model, messages=[])),
        ("temperature", openai.BadRequestError, 400, "temperature", dict(model=model, messages=hi, temperature=-1)),
        ("max_tokens", openai.BadRequestError, 400, "max_tokens", dict(model=model, messages=hi, max_tokens=0)),
        ("schema", openai.BadRequestError, 400, "response_format.json_schema.schema",
         dict(model=model, messages=hi, response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "thing"}}})),
    ]
    for what, kind, status, param, request in cases:
        for stream in (False, True):
            try:
                client.chat.completions.create(**request, stream=stream)
                report.true(f"error {what}", False, "an answer")
            except openai.APIStatusError as e:
                report.equal(f"error {what}", (type(e), e.status_code, e.param), (kind, status, param))
                report.true(f"error {what}: words and type", e.body["message"] and e.type == "invalid_request_error", e.body)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--base-url", required=True, help="of the server, without /v1")
    p.add_argument("--model", default="tiny-chat")
    p.add_argument("--goldens", type=pathlib.Path, default=ROOT / "models/tiny-chat/goldens.json")
    args = p.parse_args()
    client = openai.OpenAI(base_url=args.base_url.rstrip("/") + "/v1", api_key="none", max_retries=0, timeout=60)
    config = json.loads((args.goldens.parent / "generation_config.json").read_text())
    eos = config["eos_token_id"]
    special = set(eos if isinstance(eos, list) else [eos])
    report = TieReport()
    goldens(report, client, args.model, args.goldens, special)
    logprobs(report, client, args.model, args.goldens)
    choices(report, client, args.model)
    structured(report, client, args.model)
    vectors(report, client, args.model)
    scored(report, client, args.model)
    errors(report, client, args.model)
    for line in report.ties:
        print("near-tie, not counted:", line)
    for line in report.failed:
        print("FAILED", line)
    print(f"openai sdk {openai.__version__}: {report.checked} checks, {len(report.failed)} failed, {len(report.ties)} near-ties")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
