"""Chats over NATS: a stream, a stream that is cancelled, and a stream that survives its connection.

    pip install nats-py
    python examples/python/chat_nats.py [nats://127.0.0.1:4222]

docs/api.md describes the subjects and the headers.
"""

import asyncio
import contextlib
import json
import sys

import nats

CHAT = "millrace.v1.chat.completions"


def question(text, **fields):
    """Returns a streamed request of one question. Temperature 0 takes the most likely token every time."""
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, "stream": True, **fields}


async def receive(nc, subject, request):
    """Sends a request and yields the headers and the text of each message of the answer."""
    inbox = await nc.subscribe(nc.new_inbox())
    try:
        await nc.publish(subject, json.dumps(request).encode(), reply=inbox.subject)
        last = None
        while True:
            message = await inbox.next_msg(timeout=10)  # a server that lives is silent for one second at most
            headers = message.headers or {}
            if headers.get("Status") == "503":
                raise ConnectionError(f"no server listens on {subject}")
            if "Nats-Service-Error-Code" in headers:
                raise RuntimeError(json.loads(message.data)["error"]["message"])
            if "Millrace-Ping" in headers:
                continue
            number = int(headers["Millrace-Seq"])
            if last is not None and number != last + 1:  # NATS delivers at most once
                raise ConnectionError(f"found message {number}, expected {last + 1}")
            last = number
            choices = json.loads(message.data)["choices"] if message.data else []
            yield headers, "".join(choice["delta"].get("content") or "" for choice in choices)
            if "Millrace-End" in headers:
                return
    finally:
        await inbox.unsubscribe()


async def stream(nc):
    """Prints an answer while the server makes it."""
    print("stream: ", end="")
    async for _, text in receive(nc, CHAT, question("What is the capital of the US?")):
        print(text, end="", flush=True)
    print()


async def cancel(nc):
    """Reads the beginning of a long answer, then cancels the request."""
    request = question("Tell me a story.", max_tokens=2000, ignore_eos=True)
    async with contextlib.aclosing(receive(nc, CHAT, request)) as answer:
        first, _ = await anext(answer)
        _, text = await anext(answer)
        print("cancel:", text)
        await nc.publish(first["Millrace-Cancel"])


async def resume(url):
    """Reads one answer over two connections: the server keeps the answer of a request with stream_resume."""
    print("resume: ", end="")
    nc = await nats.connect(url)
    request = question("Count from 1 to 10.", stream_resume=True)
    async with contextlib.aclosing(receive(nc, CHAT, request)) as answer:
        first, _ = await anext(answer)
        headers, text = await anext(answer)
        print(text, end="", flush=True)
    await nc.close()  # as if the connection were lost

    nc = await nats.connect(url)
    rest = {"id": first["Millrace-Id"], "after": int(headers["Millrace-Seq"])}
    async for _, text in receive(nc, "millrace.v1.streams.resume", rest):
        print(text, end="", flush=True)
    print()
    await nc.close()


async def main():
    url = sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222"
    nc = await nats.connect(url)
    await stream(nc)
    await cancel(nc)
    await nc.close()
    await resume(url)


if __name__ == "__main__":
    asyncio.run(main())
