#!/usr/bin/env python3
"""Calls of programs that cannot run here, written down from their sources: Open WebUI 0.6 (routers/ollama.py, routers/openai.py) and the
Ollama provider of VS Code's Copilot Chat. Each case checks what the program reads of the answer."""
import json
import urllib.request

from cases import ANSWER, BASE_URL, KEY, MODEL, QUESTION, TURNS, equal, holds, run

TOOL = {"type": "function", "function": {"name": "run", "description": "Runs a command.", "parameters": {
    "type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}}


def send(path, body=None, **headers):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **headers}
    with urllib.request.urlopen(urllib.request.Request(BASE_URL + path, data, headers), timeout=60) as answer:
        return answer.read().decode()


def get(path):
    return json.loads(send(path))


def post(path, body):
    return json.loads(send(path, body))


def events(path, body):
    lines = [line[6:] for line in send(path, body, Authorization="Bearer " + KEY).splitlines() if line.startswith("data: ")]
    equal(lines[-1], "[DONE]")
    return [json.loads(line) for line in lines[:-1]]


def vscode_lists_models():
    numbers = [int(part.split("-")[0]) for part in get("/api/version")["version"].split(".")]
    holds(numbers >= [0, 6, 4], numbers)  # older servers are refused
    models = [m["model"] for m in get("/api/tags")["models"]]
    holds(MODEL in [m.removesuffix(":latest") for m in models], models)
    shown = post("/api/show", {"model": models[0]})
    info = shown["model_info"]
    context = info[info["general.architecture"] + ".context_length"]
    holds(isinstance(context, int) and context > 0, info)
    holds(info["general.basename"], info)
    holds("completion" in shown["capabilities"], shown["capabilities"])


def vscode_chats():
    parts = events("/v1/chat/completions", {"model": MODEL, "messages": TURNS, "temperature": 0, "top_p": 1, "max_tokens": 100, "n": 1, "stream": True,
                                            "stream_options": {"include_usage": True}, "tools": [TOOL], "tool_choice": "auto"})
    holds(ANSWER in "".join(p["choices"][0]["delta"].get("content") or "" for p in parts if p["choices"]), parts)
    holds(parts[-1]["usage"]["completion_tokens"] > 0, parts[-1])


def webui_lists_models():
    get("/api/version")
    models = get("/api/tags")["models"]
    holds(all({"name", "model", "modified_at", "size", "digest", "details"} <= m.keys() for m in models), models)
    loaded = get("/api/ps")["models"]
    holds(all({"name", "model", "expires_at", "size"} <= m.keys() for m in loaded), loaded)
    equal([m["object"] for m in get("/v1/models")["data"]], ["model"] * len(models))


def webui_chats_with_ollama():
    lines = [json.loads(line) for line in send("/api/chat", {
        "model": MODEL + ":latest", "messages": TURNS, "stream": True, "keep_alive": "5m", "think": False,
        "options": {"temperature": 0, "num_predict": 100, "num_ctx": 4096, "num_keep": 24, "repeat_last_n": 64, "num_gpu": 1, "use_mmap": True}}).splitlines()]
    holds(ANSWER in "".join(line["message"]["content"] for line in lines), lines)
    last = lines[-1]
    holds(last["done"] and last["eval_count"] > 0 and last["eval_duration"] > 0 and last["prompt_eval_count"] > 0, last)


def webui_chats_with_openai():
    parts = events("/v1/chat/completions", {"model": MODEL, "messages": TURNS, "stream": True, "temperature": 0, "stream_options": {"include_usage": True},
                                            "logit_bias": {}, "tools": [TOOL]})
    holds(ANSWER in "".join(p["choices"][0]["delta"].get("content") or "" for p in parts if p["choices"]), parts)


def webui_makes_a_title():
    a = post("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "### Task:\nGenerate a title for: " + QUESTION}],
                                      "stream": False, "max_completion_tokens": 20})
    equal(a["choices"][0]["message"]["role"], "assistant")


def webui_embeds_and_unloads():
    made = post("/api/embed", {"model": MODEL, "input": ["a", "b"], "truncate": True})
    equal([len(v) > 0 for v in made["embeddings"]], [True, True])
    equal(post("/api/generate", {"model": MODEL, "prompt": "", "keep_alive": 0, "stream": False})["done"], True)


run("recorded calls", [vscode_lists_models, vscode_chats, webui_lists_models, webui_chats_with_ollama, webui_chats_with_openai, webui_makes_a_title,
                       webui_embeds_and_unloads])
