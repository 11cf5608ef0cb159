#!/usr/bin/env python3
"""Checks the files, batches and stored responses of a running server with OpenAI's Python client.

Needs: pip install openai.

    scripts/e2e/openai_batches.py --base-url http://127.0.0.1:8080 [--api-key KEY]
"""
import argparse
import io
import json
import sys
import time

import openai

from checks import Report

MODEL = "tiny-chat"
QUESTION = "What is the capital of France?"
PATIENCE = 120  # seconds


def upload(client, lines, **more):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    return client.files.create(file=("requests.jsonl", io.BytesIO(text.encode())), purpose="batch", **more)


def chat_line(name, **more):
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions",
            "body": {"model": MODEL, "max_tokens": 20, "messages": [{"role": "user", "content": QUESTION}], **more}}


def ended(client, batch):
    end = time.monotonic() + PATIENCE
    while batch.status not in ("completed", "failed", "expired", "cancelled") and time.monotonic() < end:
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    return batch


def results(client, file_id):
    if file_id is None:
        return {}
    return {r["custom_id"]: r for r in map(json.loads, client.files.content(file_id).text.splitlines())}


def check_files(report, client):
    text = b"x" * 300_000
    f = client.files.create(file=("big.jsonl", io.BytesIO(text)), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600})
    report.equal("file", (f.object, f.bytes, f.filename, f.purpose, f.status), ("file", len(text), "big.jsonl", "batch", "processed"))
    report.equal("file: expiry", f.expires_at, f.created_at + 3600)
    report.equal("file: retrieved", client.files.retrieve(f.id), f)
    report.equal("file: content", client.files.content(f.id).content, text)
    report.true("file: listed", f.id in [o.id for o in client.files.list(purpose="batch", limit=1)])
    report.equal("file: deleted", client.files.delete(f.id).deleted, True)
    report.refused("file: gone", openai.NotFoundError, lambda: client.files.retrieve(f.id))
    report.refused("file: unknown", openai.NotFoundError, lambda: client.files.content("file-nobody"))
    report.refused("file: purpose", openai.BadRequestError, lambda: client.files.create(file=b"x", purpose="fine-tune"))


def check_batches(report, client):
    want = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=20)
    lines = [chat_line(f"line {i}", temperature=0) for i in range(20)] + [chat_line("bad", temperature=9), chat_line("seedless", temperature=1)]
    f = upload(client, lines)
    batch = client.batches.create(input_file_id=f.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"k": "v"})
    report.equal("batch", (batch.object, batch.endpoint, batch.input_file_id, batch.metadata), ("batch", "/v1/chat/completions", f.id, {"k": "v"}))
    report.equal("batch: expiry", batch.expires_at, batch.created_at + 24 * 3600)
    batch = ended(client, batch)
    report.equal("batch: status", batch.status, "completed")
    report.equal("batch: counts", (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed), (22, 21, 1))
    output, errors = results(client, batch.output_file_id), results(client, batch.error_file_id)
    report.equal("batch: lines", (sorted(output), list(errors)), (sorted([f"line {i}" for i in range(20)] + ["seedless"]), ["bad"]))
    answers = {output[f"line {i}"]["response"]["body"]["choices"][0]["message"]["content"] for i in range(20)}
    report.equal("batch: answers", answers, {want.choices[0].message.content})
    report.equal("batch: error", errors["bad"]["response"]["status_code"], 400)
    report.true("batch: listed", batch.id in [b.id for b in client.batches.list(limit=1)])
    report.equal("batch: output file", client.files.retrieve(batch.output_file_id).purpose, "batch_output")
    client.files.delete(f.id)

    for endpoint, body, text in [
        ("/v1/completions", {"prompt": "One, two,", "max_tokens": 5}, lambda b: b["choices"][0]["text"]),
        ("/v1/responses", {"input": QUESTION, "max_output_tokens": 20}, lambda b: b["output"][0]["content"][0]["text"]),
        ("/v1/messages", {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 20}, lambda b: b["content"][0]["text"]),
    ]:
        f = upload(client, [{"custom_id": "x", "method": "POST", "url": endpoint, "body": {"model": MODEL, "temperature": 0, **body}}])
        batch = ended(client, client.batches.create(input_file_id=f.id, endpoint=endpoint, completion_window="24h"))
        output = results(client, batch.output_file_id)
        report.true(f"batch: {endpoint}", "x" in output and text(output["x"]["response"]["body"]), (batch, results(client, batch.error_file_id)))

    broken = client.files.create(file=("broken.jsonl", io.BytesIO(b"{}\n")), purpose="batch")
    batch = ended(client, client.batches.create(input_file_id=broken.id, endpoint="/v1/completions", completion_window="24h"))
    report.equal("batch: broken", (batch.status, batch.errors.data[0].line), ("failed", 1))
    report.refused("batch: endpoint", openai.BadRequestError,
                   lambda: client.batches.create(input_file_id=broken.id, endpoint="/v1/nothing", completion_window="24h"))
    report.refused("batch: file", openai.NotFoundError,
                   lambda: client.batches.create(input_file_id="file-nobody", endpoint="/v1/completions", completion_window="24h"))
    report.refused("batch: unknown", openai.NotFoundError, lambda: client.batches.retrieve("batch_nobody"))

    many = [{"custom_id": str(i), "method": "POST", "url": "/v1/completions",
             "body": {"model": MODEL, "prompt": "Count:", "max_tokens": 400, "ignore_eos": True}} for i in range(200)]
    f = upload(client, many)
    batch = client.batches.create(input_file_id=f.id, endpoint="/v1/completions", completion_window="24h")
    report.refused("batch: its file", openai.ConflictError, lambda: client.files.delete(f.id))
    end = time.monotonic() + PATIENCE
    while client.batches.retrieve(batch.id).status == "validating" and time.monotonic() < end:
        time.sleep(0.05)
    report.true("batch: cancelling", client.batches.cancel(batch.id).status in ("cancelling", "cancelled"))
    batch = ended(client, batch)
    output, errors = results(client, batch.output_file_id), results(client, batch.error_file_id)
    report.equal("batch: cancelled", batch.status, "cancelled")
    report.equal("batch: cancelled lines", sorted(list(output) + list(errors), key=int), [str(i) for i in range(200)])
    report.true("batch: cancelled error", errors and all(e["error"]["code"] == "batch_cancelled" for e in errors.values()))


def check_responses(report, client):
    first = client.responses.create(model=MODEL, input=QUESTION, instructions="You are helpful.", temperature=0)
    report.equal("response: stored", (first.store, first.status), (True, "completed"))
    report.equal("response: retrieved", client.responses.retrieve(first.id), first)
    items = client.responses.input_items.list(first.id).data
    report.equal("response: input", [(i.type, i.role, i.content[0].text) for i in items], [("message", "user", QUESTION)])

    turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": first.output_text}, {"role": "user", "content": "And of Spain?"}]
    want = client.responses.create(model=MODEL, input=turns, temperature=0, store=False)
    got = client.responses.create(model=MODEL, input="And of Spain?", previous_response_id=first.id, temperature=0)
    report.equal("previous: text", got.output_text, want.output_text)
    report.equal("previous: prompt", got.usage.input_tokens, want.usage.input_tokens)
    report.equal("previous: id", got.previous_response_id, first.id)
    report.equal("store false", want.store, False)
    report.refused("store false: not there", openai.NotFoundError, lambda: client.responses.retrieve(want.id))
    report.refused("previous: unknown", openai.NotFoundError,
                   lambda: client.responses.create(model=MODEL, input="x", previous_response_id="resp_nobody"))

    with client.responses.stream(model=MODEL, input=QUESTION, temperature=0) as stream:
        final = stream.get_final_response()
    report.equal("response: streamed and stored", client.responses.retrieve(final.id).output_text, final.output_text)

    tool = {"type": "function", "name": "get_weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}}
    called = client.responses.create(model=MODEL, input="What is the weather in Paris?", tools=[tool], tool_choice="required", max_output_tokens=200)
    call = next(o for o in called.output if o.type == "function_call")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    whole = client.responses.create(model=MODEL, temperature=0, tools=[tool], store=False, max_output_tokens=20, input=[
        {"role": "user", "content": "What is the weather in Paris?"},
        {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}, result])
    after = client.responses.create(model=MODEL, temperature=0, tools=[tool], max_output_tokens=20, previous_response_id=called.id, input=[result])
    report.equal("previous: tool call", (after.usage.input_tokens, [o.type for o in after.output]), (whole.usage.input_tokens, [o.type for o in whole.output]))

    report.true("response: deleted", client.responses.delete(first.id) is None)
    report.refused("response: gone", openai.NotFoundError, lambda: client.responses.retrieve(first.id))


def check_background(report, client):
    want = client.responses.create(model=MODEL, input=QUESTION, temperature=0, store=False)
    r = client.responses.create(model=MODEL, input=QUESTION, temperature=0, background=True)
    report.true("background: begins", r.status in ("queued", "in_progress", "completed") and r.background, r)
    end = time.monotonic() + PATIENCE
    while r.status in ("queued", "in_progress") and time.monotonic() < end:
        time.sleep(0.05)
        r = client.responses.retrieve(r.id)
    report.equal("background: text", (r.status, r.output_text), ("completed", want.output_text))

    events = list(client.responses.create(model=MODEL, input=QUESTION, temperature=0, background=True, stream=True))
    report.equal("background: streamed", "".join(e.delta for e in events if e.type == "response.output_text.delta"), want.output_text)
    report.equal("background: numbers", [e.sequence_number for e in events], list(range(len(events))))
    again = list(client.responses.retrieve(events[0].response.id, stream=True, starting_after=2))
    report.equal("background: resumed", [(e.type, e.sequence_number) for e in again], [(e.type, e.sequence_number) for e in events[3:]])

    long = client.responses.create(model=MODEL, input="Count to a thousand.", background=True, extra_body={"seed": 1}, max_output_tokens=400)
    report.equal("background: cancelled", client.responses.cancel(long.id).status, "cancelled")
    report.equal("background: still cancelled", client.responses.retrieve(long.id).status, "cancelled")
    report.refused("background: without store", openai.BadRequestError,
                   lambda: client.responses.create(model=MODEL, input="x", background=True, store=False))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--base-url", required=True)
    p.add_argument("--api-key", default="none")
    args = p.parse_args()
    report = Report()
    client = openai.OpenAI(base_url=args.base_url + "/v1", api_key=args.api_key, max_retries=0)
    for check in [check_files, check_batches, check_responses, check_background]:
        check(report, client)
    print(f"{report.checked} checks, {len(report.failed)} failed")
    for f in report.failed:
        print("  " + f)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
