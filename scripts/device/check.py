#!/usr/bin/env python3
"""Checks of a backend through the program: goldens, invariance, and the verdicts of Go tests. Each prints a table and writes JSON."""

import argparse
import concurrent.futures
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

# How far a logit may be from the reference's, as a share of the largest: products in bf16 or f16, and weights, rows or
# keys and values as codes.
LIMIT_16BIT, LIMIT_CODES = 0.02, 0.08


# ---- Goldens


@dataclass
class Golden:
    name: str
    model: Path
    prompt: list[int]
    flags: list[str] = field(default_factory=list)

    @property
    def limit(self) -> float:
        return LIMIT_CODES if self.flags or "quantized" in self.model.parts else LIMIT_16BIT


def all_goldens(root: Path) -> list[Golden]:
    cases = []
    for config in sorted((root / "testdata/models").glob("*/config.json")):
        expected = json.loads((config.parent / "expected.json").read_text())
        cases.append(Golden(config.parent.name, config.parent, expected["prompt"]))
    prompt = [1 + 7 * i % 55 for i in range(40)]
    quantized = root / "testdata/quantized"
    cases += [Golden(f"quantized {p.parent.name}", p.parent, prompt) for p in sorted(quantized.glob("*/config.json"))]
    cases += [Golden(f"quantized {p.name}", p, prompt) for p in sorted(quantized.glob("*.gguf"))]
    demo = root / "models/tiny-chat"
    prompts = [g["prompt_ids"] for g in json.loads((demo / "goldens.json").read_text())["goldens"]]
    cases += [Golden(f"tiny-chat {i}", demo, p) for i, p in enumerate(prompts[:8])]
    for weights in ("int8", "int4", "int4-128", "fp8", "nf4"):
        cases.append(Golden(f"tiny-chat --weights {weights}", demo, prompts[0], ["--weights", weights]))
    for kv in ("int8", "int4"):
        cases.append(Golden(f"tiny-chat --kv-type {kv}", demo, prompts[0], ["--kv-type", kv]))
    return cases


def millrace(root: Path, *args: str) -> Any:
    """The JSON that a command prints. Processes that start together may take the device's memory from one another: it is tried again then."""
    for _ in range(4):
        run = subprocess.run([root / "bin/millrace", *args], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
        if run.returncode == 0 or "out of memory" not in run.stderr:
            break
    if run.returncode != 0:
        raise RuntimeError(f"millrace {args[0]} ended with {run.returncode}: {run.stderr.strip().splitlines()[-1:]}")
    return json.loads(run.stdout)


def compare(root: Path, backend: str, golden: Golden) -> dict[str, Any]:
    """Generates on the backend and on ref, and compares the logits of the prompt and of ref's tokens."""

    def common(name: str) -> list[str]:
        return ["--model", str(golden.model), "--backend", name, "--packed-weights", "off", "--threads", "2", *golden.flags, "--json"]

    def generate(name: str) -> list[int]:
        tokens = ",".join(map(str, golden.prompt))
        return millrace(root, "generate", "--tokens", tokens, "-n", "16", "--temperature", "0", "--ignore-eos", *common(name))["tokens"]

    got, want = generate(backend), generate("ref")
    tokens = golden.prompt + want[:-1]
    positions = list(range(len(golden.prompt) - 1, len(tokens)))
    flags = ["--tokens", ",".join(map(str, tokens)), "--positions", ",".join(map(str, positions))]
    a, b = (millrace(root, "logits", *flags, *common(name))["logits"] for name in (backend, "ref"))
    # A NaN counts as infinitely far.
    off = max(abs(x - y) if x == x else float("inf") for r, s in zip(a, b, strict=True) for x, y in zip(r, s, strict=True))
    share = off / max(abs(y) for s in b for y in s)
    result = {"name": golden.name, "off": off, "share": share, "limit": golden.limit, "tokens": "same"}
    if got != want:
        at = next(i for i, (x, y) in enumerate(zip(got, want, strict=True)) if x != y)
        margin = b[at][want[at]] - b[at][got[at]]
        result |= {"tokens": "near tie" if margin <= 2 * off else "differ", "at": at, "margin": margin, "got": got, "want": want}
    result["ok"] = result["tokens"] != "differ" and share <= golden.limit
    return result


def goldens(args: argparse.Namespace) -> bool:
    cases = all_goldens(args.root)
    results = []

    def one(golden: Golden) -> dict[str, Any]:
        try:
            return compare(args.root, args.backend, golden)
        except Exception as e:
            return {"name": golden.name, "tokens": "error", "error": str(e), "ok": False}

    with concurrent.futures.ThreadPoolExecutor(min(args.jobs, 8)) as pool:
        for r in pool.map(one, cases):
            results.append(r)
            if r["tokens"] == "error":
                print(f"{r['name']}: ERROR: {r['error']}")
                continue
            where = f", from token {r['at']} on, margin {r['margin']:.4f}: {r['got']}, ref {r['want']}" if "at" in r else ""
            print(f"{r['name']}: {r['tokens']}{where}; logits off by {r['off']:.4f}, {r['share']:.2%} of the largest (at most {r['limit']:.0%})", flush=True)
            write(args.out, results)
    write(args.out, results)
    counts = {k: sum(r["tokens"] == k for r in results) for k in ("same", "near tie", "differ", "error")}
    print(f"goldens: {len(results)}: " + ", ".join(f"{n} {k}" for k, n in counts.items()) + f"; {sum(not r['ok'] for r in results)} not ok")
    return all(r["ok"] for r in results)


# ---- Invariance


@contextmanager
def server(root: Path, model: Path, *flags: str) -> Iterator[tuple[int, Path]]:
    """A server of its own on free ports; its port and its log."""
    ports = []
    for _ in range(2):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            ports.append(s.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [root / "bin/millrace", "serve", "--model", model, "--listen", f"127.0.0.1:{ports[0]}", "--nats-listen", f"127.0.0.1:{ports[1]}"]
        command += ["--data-dir", f"{folder}/data", "--packed-weights", "off", *flags]
        with log.open("w") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            begin = time.monotonic()
            while not ready(ports[0]):
                if process.poll() is not None or time.monotonic() - begin > 60:
                    raise RuntimeError(f"the server does not start: {log.read_text()[-2000:]}")
                time.sleep(0.1)
            yield ports[0], log
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def ready(port: int) -> bool:
    try:
        return get(port, "/health/ready")[0] == 200
    except OSError:
        return False


def request(seed: int, model: str, vocab: int, longest: int, tokens: int) -> dict[str, Any]:
    """A sampled completion with log probabilities, which show a change of any bit that matters."""
    random = Random(seed)
    prompt = [random.randrange(10, vocab) for _ in range(random.randint(longest // 8, longest))]
    return {
        "model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 1, "seed": seed, "ignore_eos": True, "logprobs": 5,
    }  # fmt: skip


def complete(port: int, body: dict[str, Any]) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=90)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    if response.status != 200:
        raise RuntimeError(f"HTTP {response.status}: {text[:300]}")
    return json.loads(text)["choices"][0]


def together(port: int, bodies: list[dict[str, Any]]) -> list[dict[str, Any] | Exception]:
    def one(body: dict[str, Any]) -> dict[str, Any] | Exception:
        try:
            return complete(port, body)
        except Exception as e:
            return e

    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(one, bodies))


def verdict(title: str, alone: list[dict[str, Any]], found: list[dict[str, Any] | Exception]) -> dict[str, Any]:
    """Compares the first answers with those alone, and counts failures among all."""
    failed = [str(f) for f in found if isinstance(f, Exception)]
    differ = [i for i, (a, f) in enumerate(zip(alone, found, strict=False)) if not isinstance(f, Exception) and a != f]
    result = {"case": title, "compared": len(alone), "requests": len(found), "differ": differ, "failed": failed[:3], "failures": len(failed)}
    result["ok"] = not failed and not differ
    print(f"{title}: {len(found)} requests at once, {len(alone)} compared with the same alone: {len(differ)} differ, {len(failed)} failed", flush=True)
    for i in differ[:2]:
        a, f = alone[i]["logprobs"]["token_logprobs"], found[i]["logprobs"]["token_logprobs"]
        print(f"  request {i}: first difference at token {next((n for n, (x, y) in enumerate(zip(a, f, strict=False)) if x != y), None)}: alone {a[:8]}, found {f[:8]}")
    for why in failed[:3]:
        print(f"  {why}")
    return result


@dataclass
class Served:
    title: str
    model: Path
    flags: list[str]
    longest: int  # tokens of a prompt
    tokens: int = 24


def invariance(args: argparse.Namespace) -> bool:
    demo = args.root / "models/tiny-chat"
    backend = ["--backend", args.backend]
    # What a step may hold decides the chunks of prompts and the rows beside them.
    cases = [
        Served("tiny-chat", demo, [], 300),
        Served("random model", args.big, [], 300),
        Served("random model, int4", args.big, ["--weights", "int4"], 300),
    ]
    results: list[dict[str, Any]] = []
    for c in cases:
        vocab = json.loads((c.model / "config.json").read_text())["vocab_size"]
        bodies = [request(i, c.model.name, vocab, c.longest, c.tokens) for i in range(64)]
        try:
            with server(args.root, c.model, *backend, *c.flags) as (port, _):
                alone = [complete(port, b) for b in bodies[:12]]
                results.append(verdict(f"{c.title}, steps of 512 tokens", alone, together(port, bodies)))
            with server(args.root, c.model, *backend, *c.flags, "--max-batch-tokens", "80", "--prefill-chunk", "24") as (port, _):
                results.append(verdict(f"{c.title}, steps of 80 tokens", alone, together(port, bodies)))
            if c.model == demo:
                results.append(full_pool(args, backend, bodies, alone))
        except Exception as e:
            print(f"{c.title}: ERROR: {e}")
            results.append({"case": c.title, "ok": False, "error": str(e)})
        write(args.out, results)
    print(f"invariance: {len(results)} cases, {sum(not r['ok'] for r in results)} not ok")
    return all(r["ok"] for r in results)


def full_pool(args: argparse.Namespace, backend: list[str], bodies: list[dict[str, Any]], alone: list[dict[str, Any]]) -> dict[str, Any]:
    """A pool of few slabs: requests wait, and none fails."""
    with server(args.root, args.root / "models/tiny-chat", *backend, "--kv-memory", "8MiB", "--max-queue-wait", "0s") as (port, log):
        most, done = [0.0], threading.Event()

        def watch() -> None:
            while not done.wait(0.02):
                waiting = re.search(r"^millrace_num_requests_waiting\S* (\S+)", get(port, "/metrics")[1], re.M)
                most[0] = max(most[0], float(waiting[1]) if waiting else 0)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            found = together(port, bodies)
        finally:
            done.set()
            watcher.join()
        slabs = re.search(r'"kv_slabs":(\d+)|kv_slabs=(\d+)', log.read_text())
        result = verdict("tiny-chat, a full pool", alone, found)
        result |= {"waiting": most[0], "slabs": int(slabs[1] or slabs[2]) if slabs else None}
        if most[0] == 0:
            result["ok"] = False
        print(f"  {result['slabs']} slabs; at most {most[0]:.0f} requests waited, expected 1 or more")
        return result


# ---- Go tests


def gotest(args: argparse.Namespace) -> bool:
    """Runs each test of a test program in a process of its own, counts the verdicts and prints what failed."""
    program = [f"./{args.program.name}"]
    names = subprocess.run([*program, "-test.list", "."], cwd=args.program.parent, capture_output=True, text=True, timeout=60).stdout.split()
    result: dict[str, Any] = {"counts": {}, "failed": [], "not_tested": [], "missing": names.copy()}

    def one(name: str) -> tuple[str, str, int]:
        command = [*program, "-test.v", f"-test.timeout={args.seconds}s", f"-test.run=^{name}$"]
        run = subprocess.run(command, cwd=args.program.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        return name, run.stdout, run.returncode

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(one, n) for n in names]):
            name, text, status = done.result()
            result["missing"].remove(name)
            read_verdicts(text, result)
            if status != 0 and not any(f.split("/")[0] == name for f in result["failed"]):  # it crashed
                result["failed"].append(name)
                print(f"{name}: ended with {status}:\n{text[-1500:]}", flush=True)
            write(args.out, result)
    for what in result["not_tested"]:
        print(f"NOT TESTED: {what}")
    failed = result["failed"]
    counts = ", ".join(f"{n} {k.lower()}" for k, n in sorted(result["counts"].items()))
    print(f"go tests: {counts}" + (f"; failed: {', '.join(failed[:20])}" if failed else ""))
    return not failed and result["counts"].get("PASS", 0) > 0


def read_verdicts(text: str, result: dict[str, Any]) -> None:
    """Adds the verdicts of a process's output to the result, and prints the messages of what failed."""
    lines = text.splitlines()
    failed = set()
    for line in lines:
        if m := re.match(r"\s*--- (PASS|FAIL|SKIP): (\S+)", line):
            result["counts"][m[1]] = result["counts"].get(m[1], 0) + 1
            if m[1] == "FAIL":
                failed.add(m[2])
        if (m := re.search(r"NOT TESTED: (.*)", line)) and m[1] not in result["not_tested"]:
            result["not_tested"].append(m[1])
    result["failed"] += sorted(failed)
    running, shown = "", 0
    for line in lines:
        if m := re.match(r"=== (?:RUN|CONT|NAME) +(\S+)", line):
            running, shown = m[1], 0
        elif running in failed and not line.strip().startswith("---") and shown < 12:
            print(f"{running}: {line.strip()[:300]}", flush=True)
            shown += 1


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("goldens", "invariance", "gotest"))
    parser.add_argument("--root", type=Path, help="folder of the unpacked archive")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--big", type=Path, help="folder of the random model")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--program", type=Path, help="the Go test program")
    parser.add_argument("--seconds", type=int, default=90, help="time limit of a Go test")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    ok = {"goldens": goldens, "invariance": invariance, "gotest": gotest}[args.what](args)
    sys.exit(not ok)


if __name__ == "__main__":
    main()
