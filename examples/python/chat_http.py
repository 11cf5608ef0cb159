"""Chats over HTTP with OpenAI's client: a stream, a stream that is cancelled, and a stream that survives its connection.

    pip install openai
    python examples/python/chat_http.py [http://127.0.0.1:8080]
"""

import sys
import uuid

import openai


def question(text):
    """Returns the messages of a conversation of one question."""
    return [{"role": "user", "content": text}]


def text_of(chunk):
    """Returns the text that a chunk adds. The first chunk (the role) and the last one (finish_reason) add none."""
    return chunk.choices[0].delta.content or "" if chunk.choices else ""


def stream(client, model):
    """Prints an answer while the server makes it. Temperature 0 takes the most likely token every time."""
    print("stream: ", end="")
    for chunk in client.chat.completions.create(
        model=model, messages=question("What is the capital of the US?"), temperature=0, stream=True
    ):
        print(text_of(chunk), end="", flush=True)
    print()


def cancel(client, model):
    """Reads the beginning of a long answer. To close the stream, here by leaving `with`, cancels the request."""
    with client.chat.completions.create(
        model=model,
        messages=question("Tell me a story."),
        max_tokens=2000,
        stream=True,
        extra_body={"ignore_eos": True},  # a field that the client does not know
    ) as answer:
        print("cancel:", next(filter(None, map(text_of, answer))))


def resume(client, model):
    """Reads one answer over two connections.

    The server keeps the answer of a request with stream_resume when the connection is lost. The same request with the
    same request_id does not run again, here or at another gateway: it returns the same answer from its beginning.
    """
    request = dict(
        model=model,
        messages=question("Count from 1 to 10."),
        temperature=0,
        stream=True,
        extra_body={"stream_resume": True, "request_id": uuid.uuid4().hex},
    )
    print("resume: ", end="")
    with client.chat.completions.create(**request) as answer:
        seen = next(filter(None, map(text_of, answer)))
    print(seen, end="", flush=True)
    # The connection is lost. A program gets here from `except openai.APIConnectionError`.
    again = 0
    for chunk in client.chat.completions.create(**request):
        text = text_of(chunk)
        print(text[max(len(seen) - again, 0):], end="", flush=True)
        again += len(text)
    print()


def main():
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
    client = openai.OpenAI(base_url=url + "/v1", api_key="none")  # or an API key, where the server has some
    model = client.models.list().data[0].id
    stream(client, model)
    cancel(client, model)
    resume(client, model)


if __name__ == "__main__":
    main()
