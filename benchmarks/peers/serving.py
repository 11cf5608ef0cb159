"""Serving over HTTP: the systems' own servers under the same load."""

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from systems import ENVIRONMENT, MILLRACE, PEERS, ROOT, Unavailable, gguf, last_line, output, weights_flags

LOAD = PEERS / "load"
START = 180  # seconds for a server to load its model


@dataclass(frozen=True)
class Case:
    """requests completions, clients at once; those of a burst all come together. Those of a conversation are its turns."""

    title: str
    model: Path
    weights: str
    clients: int
    requests: int
    words: int
    tokens: int = 64
    turns: int = 1
    context: int = 512  # tokens of a client


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A server process, ready when it is made."""

    def __init__(self, name: str, command: list, health: str, port: int) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self.log = PEERS / f"server-{name}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, cwd=ROOT, env=ENVIRONMENT)
        try:
            self._wait(health)
        except BaseException:
            self.close()
            raise

    def _wait(self, health: str) -> None:
        deadline = time.monotonic() + START
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise Unavailable(f"{self.name} ended: {last_line(self.log)}")
            try:
                with urllib.request.urlopen(self.url + health, timeout=5):
                    return
            except (urllib.error.URLError, TimeoutError, ConnectionError):
                time.sleep(0.1)
        raise Unavailable(f"{self.name} was not ready within {START} s")

    def measure(self, case: Case, seed: int) -> dict[str, Any]:
        sizes = {"clients": case.clients, "requests": case.requests, "words": case.words, "tokens": case.tokens, "turns": case.turns}
        flags = [f"--{k}={v}" for k, v in sizes.items()]
        return json.loads(output([LOAD, f"--url={self.url}", "--model=bench", f"--seed={seed}", *flags]))

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def millrace(case: Case, threads: int, flags: tuple[str, ...] = (), name: str = "millrace") -> Server:
    port, nats = free_port(), free_port()
    command = [MILLRACE, "serve", "--model", case.model, "--served-model-name", "bench", "--threads", threads]
    command += ["--listen", f"127.0.0.1:{port}", "--nats-listen", f"127.0.0.1:{nats}", "--data-dir", PEERS / "data" / name]
    command += [*weights_flags(case.weights), "--log-level", "warn", *flags]
    return Server(name, command, "/health/ready", port)


def llama(case: Case, threads: int) -> Server:
    """llama-server with a slot for each client. It keeps old prompts only where there are conversations."""
    port = free_port()
    command = [PEERS / "llama/bin/llama-server", "--model", gguf(case.model, case.weights).path, "--alias", "bench"]
    command += ["--host", "127.0.0.1", "--port", port, "--threads", threads, "--threads-batch", threads]
    command += ["--parallel", case.clients, "--ctx-size", case.context * case.clients, "--no-webui"]
    command += [] if case.turns > 1 else ["--cache-ram", 0]
    return Server("llama", command, "/health", port)
