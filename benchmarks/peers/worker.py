"""What the workers of all peers share: JSON lines, one answer for each request.

A worker answers {"versions": {...}} once its model is loaded; then each line {"prompt", "gen",
"batch", "seed", "beams"} on its standard input with {"prefill", "decode"}, in seconds. It ends with its input.
"""

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Case:
    """batch sequences of prompt tokens each, or searches of beams, and gen steps of decoding all of them together."""

    prompt: int
    gen: int
    batch: int
    seed: int = 0
    beams: int = 1

    def prompts(self, vocab: int) -> list[list[int]]:
        """Fresh random tokens, so that no prefix cache has seen them. The first ids are special."""
        r = random.Random(self.seed)
        return [[r.randrange(16, vocab) for _ in range(self.prompt)] for _ in range(self.batch)]


@dataclass(frozen=True)
class Times:
    prefill: float  # seconds for the prompts of all sequences; of searches with their first choice
    decode: float  # seconds for gen steps


class Model(Protocol):
    versions: dict[str, str]

    def measure(self, case: Case) -> Times: ...


class Stopwatch:
    def __init__(self) -> None:
        self.start = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        took, self.start = now - self.start, now
        return took


def main(load: Callable[[Path, int], Model]) -> None:
    """Runs a worker: load opens a model for a number of threads."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()

    # Libraries print to standard output: they get standard error instead.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: dict[str, object]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    model = load(args.model, args.threads)
    answer({"versions": model.versions})
    for line in sys.stdin:
        answer(asdict(model.measure(Case(**json.loads(line)))))
