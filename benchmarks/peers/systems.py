"""The systems under test, one active at a time, and the files that each wants."""

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from worker import Case, Times

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PEERS = ROOT / "build/peers"
MODELS = PEERS / "models"
MODEL = MODELS / "llama-1.1b"
TINY = ROOT / "models/tiny-chat"
TINY_WEIGHTS = ("bf16", "int8")  # both systems of a row with the same
MILLRACE = ROOT / "bin/millrace"
ENVIRONMENT = os.environ | {"LLAMA_CPP_LIB_PATH": str(PEERS / "llama/bin"), "HF_HUB_OFFLINE": "1"}


class Unavailable(Exception):
    """The system cannot run this case. The text says why."""


class System(Protocol):
    name: str
    versions: dict[str, str]

    def measure(self, case: Case) -> Times: ...

    def close(self) -> None: ...


class Worker:
    """A peer: a process that keeps its model loaded and sleeps between cases."""

    def __init__(self, name: str, model: Path, threads: int) -> None:
        self.name = name
        self.log = PEERS / f"worker-{name}.log"
        script = HERE / f"worker_{name}.py"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, script, model, "--threads", str(threads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=ENVIRONMENT,
            )
        self.versions = self._answer()["versions"]

    def measure(self, case: Case) -> Times:
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):  # it has ended: the answer says why
            self.process.stdin.write(json.dumps(asdict(case)) + "\n")
            self.process.stdin.flush()
        return Times(**self._answer())

    def _answer(self) -> dict:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise Unavailable(f"{self.name} ended: {last_line(self.log)} (all of it in {self.log.relative_to(ROOT)})")
        return json.loads(line)

    def close(self) -> None:
        if self.process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Millrace:
    """Each case is a run of `millrace bench`, which measures the machine's limits too."""

    def __init__(self, weights: str, threads: int) -> None:
        self.name = "millrace"
        self.flags = [*weights_flags(weights), "--threads", str(threads)]
        self.versions = {"millrace": output([MILLRACE, "version"])}
        self.reports: list[dict[str, Any]] = []

    def measure(self, case: Case) -> Times:
        sizes = ["--prompt", case.prompt, "--gen", case.gen, "--batch", case.batch, "--repeat", 1]
        command = [MILLRACE, "bench", "--json", "--model", MODEL, *map(str, sizes), *self.flags]
        if case.beams > 1:
            result = json.loads(output([*command, "--beams", case.beams]))["beams"][0]
            return Times(result["first_token_seconds"], case.gen * result["beam_tpot_seconds"])
        result = json.loads(output(command))["results"][0]
        self.reports.append(result)
        return Times(
            case.batch * case.prompt / result["prefill_tokens_per_second"],
            case.batch * case.gen / result["decode_tokens_per_second"],
        )

    def close(self) -> None:
        pass


def weights_flags(weights: str) -> list[str]:
    """The flags of millrace for a type of weights. Unavailable where the binary does not know it."""
    if "--weights" in output([MILLRACE, "bench", "--help"]):
        return ["--weights", weights]
    if weights == "bf16":
        return []
    raise Unavailable(f"millrace has no --weights, so no {weights}")


def output(command: list) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        error = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise Unavailable(f"{Path(command[0]).name} {command[1]}: exit code {done.returncode}: {error}")
    return done.stdout.strip()


def last_line(path: Path) -> str:
    return (path.read_text(errors="replace").strip().splitlines() or ["no output"])[-1]


@dataclass(frozen=True)
class File:
    """A file or folder of a peer, made once by a script of this folder."""

    path: Path
    script: str
    source: Path
    weights: str

    def make(self) -> None:
        if not self.path.exists():
            print(f"peers: {self.path.relative_to(ROOT)}", file=sys.stderr, flush=True)
            command = [sys.executable, HERE / self.script, self.source, self.path, "--weights", self.weights]
            with (PEERS / f"{self.path.name}.log").open("w") as log:
                done = subprocess.run(command, stdout=log, stderr=log, env=ENVIRONMENT)
            if done.returncode:
                raise SystemExit(f"{self.script}: {last_line(Path(log.name))} (all of it in {log.name})")


def gguf(source: Path, weights: str) -> File:
    return File(MODELS / f"{source.name}-{weights}.gguf", "convert_gguf.py", source, weights)


def openvino(source: Path, weights: str) -> File:
    return File(MODELS / f"{source.name}-{weights}-openvino", "convert_openvino.py", source, weights)


def make_models(types: list[str], names: list[str]) -> None:
    if not (MODEL / "config.json").exists():
        print(f"peers: {MODEL.relative_to(ROOT)}", file=sys.stderr, flush=True)
        output(["go", "run", "./benchmarks/randmodel", "--tokenizer", "--out", MODEL])
    for weights in types:
        if "llama" in names:
            gguf(MODEL, weights).make()
        if "openvino" in names:
            openvino(MODEL, weights).make()
    for weights in TINY_WEIGHTS:
        if "llama" in names:
            gguf(TINY, weights).make()


def kv_bytes(case: Case) -> tuple[int, int]:
    """Bytes of a search's keys and values at its last step: with its prompt once, and with its prompt for each beam."""
    sizes = ["--prefill", case.prompt, "--gen", case.gen, "--beams", case.beams]
    beams = json.loads(output([MILLRACE, "explain", MODEL, "--json", *sizes]))["beams"]
    return beams["segment_bytes"], beams["standard_bytes"]


def start(name: str, weights: str, threads: int) -> System:
    """Loads a system. Unavailable where it does not have the type of weights."""
    if name == "millrace":
        return Millrace(weights, threads)
    if name == "transformers" and weights != "bf16":
        raise Unavailable(f"transformers is measured in bf16 only, not in {weights}")
    model = {"llama": gguf(MODEL, weights).path, "openvino": openvino(MODEL, weights).path, "transformers": MODEL}
    return Worker(name, model[name], threads)


NAMES = ("millrace", "llama", "openvino", "transformers")
