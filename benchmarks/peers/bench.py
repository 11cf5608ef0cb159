"""Measures Millrace and its peers, interleaved in one run: see README.md."""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import ablations
import machine
import report
import serving
import systems
from systems import Unavailable
from worker import Case

LONG = Case(prompt=512, gen=32, batch=1)  # prefill, and decode of one sequence after it
MANY = Case(prompt=128, gen=32, batch=16)
BEAMS = Case(prompt=256, gen=32, batch=1, beams=4)
BEAM_MEMORY = 128 << 20  # bytes of keys and values of the most searches at once
WARM_UP = Case(prompt=64, gen=4, batch=1)


class Run:
    """The measurements so far. say prints what is left out and keeps it for the report."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.threads: int = args.threads
        self.rounds: int = args.rounds
        self.machine = machine.describe()
        self.loads: list[machine.Load] = []
        self.versions: dict[str, str] = {}
        self.left_out: list[str] = []
        # [metric][weights or ""][system] -> a value a round
        self.values: dict[str, dict[str, dict[str, list[float]]]] = {}
        self.millrace: dict[str, list[dict[str, Any]]] = {}  # reports of its bench, by weights
        self.ablations: dict[str, dict[str, Any]] = {}  # by technique
        self.seed = args.seed

    def say(self, text: str) -> None:
        print(f"peers: {text}", file=sys.stderr, flush=True)

    def leave_out(self, why: object) -> None:
        self.say(f"left out: {why}")
        self.left_out.append(str(why))

    def next_seed(self) -> int:
        self.seed += 1
        return self.seed

    def add(self, metric: str, weights: str, system: str, value: float) -> None:
        self.say(f"  {metric} {weights} {system}: {value:.2f}")
        self.values.setdefault(metric, {}).setdefault(weights, {}).setdefault(system, []).append(value)

    def start_each(self, starts: dict[str, Callable[[], Any]]) -> dict[str, Any]:
        started = {}
        for name, start in starts.items():
            try:
                started[name] = start()
            except Unavailable as why:
                self.leave_out(why)
        return started

    def interleave(self, started: dict[str, Any], rounds: int, measure: Callable[[str, Any], None]) -> None:
        """Measures each in every round, another one first each time. What fails is left out from there on."""
        for r in range(rounds):
            self.loads.append(machine.load())
            names = list(started)
            for name in names[r % max(len(names), 1) :] + names[: r % max(len(names), 1)]:
                try:
                    measure(name, started[name])
                except Unavailable as why:
                    self.leave_out(why)
                    started.pop(name).close()


def device(run: Run, weights: str, names: list[str], many_rounds: int) -> None:
    """Prefill and decode without a server."""
    run.say(f"{weights}: {run.rounds} rounds")
    started = run.start_each({n: lambda n=n: systems.start(n, weights, run.threads) for n in names})

    def long(name: str, system: systems.System) -> None:
        times = system.measure(Case(LONG.prompt, LONG.gen, LONG.batch, run.next_seed()))
        run.add("prefill 512", weights, name, LONG.prompt / times.prefill)
        run.add("decode 1", weights, name, LONG.gen / times.decode)

    def many(name: str, system: systems.System) -> None:
        times = system.measure(Case(MANY.prompt, MANY.gen, MANY.batch, run.next_seed()))
        run.add("decode 16", weights, name, MANY.batch * MANY.gen / times.decode)

    try:
        for system in started.values():
            run.versions |= system.versions
        run.interleave(started, 1, lambda _, system: system.measure(WARM_UP))
        run.interleave(started, run.rounds, long)
        run.interleave(started, many_rounds, many)
    finally:
        for system in started.values():
            if isinstance(system, systems.Millrace):
                run.millrace[weights] = [r for r in system.reports if r["gen"] == LONG.gen]
            system.close()


def search(run: Run, names: list[str]) -> None:
    """Beam searches, one and as many as fit: transformers keeps the prompt of a search once for each beam."""
    once, each = systems.kv_bytes(BEAMS)
    fit = {"millrace": BEAM_MEMORY // once, "transformers": BEAM_MEMORY // each}
    started = run.start_each({n: lambda n=n: systems.start(n, "bf16", run.threads) for n in names if n in fit})
    title = f"{BEAMS.beams} beams, {BEAMS.prompt} + {BEAMS.gen + 1} tokens"

    def measure(name: str, system: systems.System, batch: int, load: str) -> None:
        times = system.measure(replace(BEAMS, batch=batch, seed=run.next_seed()))
        run.add(f"{title}, {load}: searches", "bf16", name, batch)
        run.add(f"{title}, {load}: first token, s", "bf16", name, times.prefill)
        run.add(f"{title}, {load}: next token, s", "bf16", name, times.decode / BEAMS.gen)
        run.add(f"{title}, {load}: tokens/s", "bf16", name, batch * (BEAMS.gen + 1) / (times.prefill + times.decode))

    try:
        for system in started.values():
            run.versions |= system.versions
        run.interleave(started, 1, lambda _, system: system.measure(WARM_UP))
        run.interleave(started, run.rounds, lambda name, system: measure(name, system, 1, "alone"))
        most = f"most in {BEAM_MEMORY >> 20} MiB"
        run.interleave(started, 1, lambda name, system: measure(name, system, fit[name], most))
    finally:
        for system in started.values():
            system.close()


def serve(run: Run, case: serving.Case, rounds: int, starts: dict[str, Callable[[], Any]]) -> None:
    """A case of serving over HTTP; OpenVINO, which has no server here, through its batching API."""
    run.say(f"{case.title}: {rounds} rounds")
    started = run.start_each(starts)

    def measure(name: str, server: Any) -> None:
        if isinstance(server, serving.Server):
            result = server.measure(case, run.next_seed())
            tps, ttft = result["tokens_per_second"], result["ttft_p50"]
        else:  # all requests at once: the first tokens come together
            prompts = Case(report.BURST_PROMPT, case.tokens - 1, case.clients, run.next_seed())
            times = server.measure(prompts)
            tps, ttft = case.requests * case.tokens / (times.prefill + times.decode), times.prefill
        if case.turns > 1:
            run.add(f"{case.title}: TTFT p50 of turns 2 and later, s", case.weights, name, result["later_ttft_p50"])
            return
        run.add(f"{case.title}: tokens/s", case.weights, name, tps)
        run.add(f"{case.title}: TTFT p50, s", case.weights, name, ttft)

    try:
        warm_up = serving.Case("", case.model, case.weights, 1, 1, case.words, 4)
        for server in started.values():
            server.measure(warm_up, 0) if isinstance(server, serving.Server) else server.measure(WARM_UP)
        run.interleave(started, rounds, measure)
    finally:
        for server in started.values():
            server.close()


def http(run: Run, case: serving.Case) -> dict[str, Callable[[], Any]]:
    return {
        "millrace": lambda: serving.millrace(case, run.threads),
        "llama": lambda: serving.llama(case, run.threads),
    }


def serve_all(run: Run, args: argparse.Namespace) -> None:
    for weights in systems.TINY_WEIGHTS:
        for clients, requests in ((1, 10), (64, 256)):
            case = serving.Case(f"demo model, {clients} clients", systems.TINY, weights, clients, requests, words=120)
            serve(run, case, run.rounds, http(run, case))
    for weights in args.weights if not args.quick else args.weights[:1]:
        case = serving.Case("burst of 16", systems.MODEL, weights, 16, 16, words=report.BURST_WORDS)
        starts = http(run, case) | {"openvino": lambda w=weights: systems.start("openvino", w, run.threads)}
        serve(run, case, 1 if args.quick else run.rounds, starts)


def converse(run: Run, weights: list[str]) -> None:
    """An agent's conversation: a long prompt that grows by a few words with each turn."""
    for w in weights:
        case = serving.Case("conversation", systems.MODEL, w, clients=1, requests=5, words=480, tokens=16, turns=5, context=4096)
        serve(run, case, run.rounds, http(run, case))


def ablate(run: Run) -> None:
    """Serves with each technique on and off, both in every round."""
    for a in ablations.ABLATIONS:
        run.say(f"{a.title}: {run.rounds} rounds")
        started = run.start_each(
            {
                name: lambda name=name, flags=flags: serving.millrace(a.case, run.threads, flags, f"millrace-{name}")
                for name, flags in (("on", a.on), ("off", a.off))
            }
        )
        values: dict[str, list[dict[str, float]]] = {}
        warm_up = serving.Case("", a.case.model, a.case.weights, 1, 1, a.case.words, 4)

        def measure(name: str, server: serving.Server) -> None:
            values.setdefault(name, []).append(server.measure(a.case, run.next_seed()))
            run.say(f"  {name}: {values[name][-1]['tokens_per_second']:.0f} tokens/s")

        try:
            for server in started.values():
                server.measure(warm_up, 0)
            run.interleave(started, run.rounds, measure)
        finally:
            for server in started.values():
                server.close()
        if len(values) == len(("on", "off")):
            run.ablations[a.title] = {"load": a.case.title, "reported": a.reported, **values}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a subset, in under 10 minutes on two idle cores")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each case; the median counts")
    parser.add_argument("--weights", default="bf16,int8,int4", help="types of weights")
    parser.add_argument("--systems", default=",".join(systems.NAMES), help="systems")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="compute threads of each")
    parser.add_argument("--only", choices=("device", "beams", "serve", "converse", "ablate"), help="one part alone")
    parser.add_argument("--seed", type=int, default=int(datetime.now(UTC).timestamp()), help="of the prompts")
    args = parser.parse_args()
    args.weights, args.systems = args.weights.split(","), args.systems.split(",")
    for flag, found, known in (
        ("weights", args.weights, ("bf16", "int8", "int4")),
        ("systems", args.systems, systems.NAMES),
    ):
        if unknown := set(found) - set(known):
            parser.error(f"--{flag}: found {', '.join(sorted(unknown))}, expected {', '.join(known)}")
    if args.rounds < 1 or args.threads < 1:
        parser.error(f"--rounds {args.rounds}, --threads {args.threads}: expected at least 1")
    return args


def main() -> None:
    args = arguments()
    systems.make_models(args.weights, args.systems)
    run = Run(args)
    load = machine.load(5)
    run.loads.append(load)
    if not load.idle:
        run.say(f"this machine is not idle: others use {load.busy:.0%}, steal is {load.steal:.0%}")
    try:
        if args.only in (None, "device"):
            for weights in args.weights:
                device(run, weights, args.systems, 1 if args.quick else run.rounds)
        if args.only == "beams" or args.only is None and not args.quick:
            search(run, args.systems)
        if args.only in (None, "serve"):
            serve_all(run, args)
        if args.only in (None, "converse"):
            converse(run, args.weights[:1] if args.quick else args.weights)
        if args.only == "ablate" or args.only is None and not args.quick:
            ablate(run)
    except KeyboardInterrupt:
        run.leave_out("what would have come after it was interrupted")
    raw = vars(run) | {
        "loads": [vars(v) for v in run.loads],
        "commit": systems.output(["git", "describe", "--always", "--dirty"]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "arguments": sys.argv[1:],
    }
    path = report.write(systems.ROOT / "benchmarks/results", raw)
    print(path.read_text())
    run.say(f"written to {path.relative_to(systems.ROOT)}, the raw values beside it")


if __name__ == "__main__":
    main()
