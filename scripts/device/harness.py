#!/usr/bin/env python3
"""Runs the kernel harness in batches over several processes, with a verdict for each test.

A device that fails, or a kernel that never ends, takes its process along. The test is named then, and the others of its batch run
in a new process. With --isas the tests run for one instruction set after the other.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

START = re.compile(r"^\[ RUN      \] (\S+)")
END = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] ([^\s,]+)")
# After these the driver gives a process no new context: the tests after it fail with it.
LASTING = re.compile(r"CUDA_ERROR_(ILLEGAL|MISALIGNED|LAUNCH|HARDWARE|INVALID_PC|INVALID_ADDRESS_SPACE|ASSERT|ECC|UNKNOWN)")
SHOWN = 40  # lines of a failure that are printed
stopping = False


def stop(*_: object) -> None:
    global stopping
    stopping = True


def tests(program: Path, pattern: str) -> list[str]:
    """Names of the tests that a filter selects; none if the program cannot list them."""
    run = subprocess.run([program, "--gtest_list_tests", f"--gtest_filter={pattern}"], capture_output=True, text=True, timeout=60)
    if run.returncode != 0:
        print(f"harness: the tests cannot be listed:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
        return []
    names, suite = [], ""
    for line in run.stdout.splitlines():
        name = line.partition("#")[0].rstrip()
        if line.startswith("  "):
            names.append(suite + name.strip())
        elif name.endswith("."):
            suite = name
    return names


def read(text: str) -> tuple[dict[str, dict], str]:
    """The verdicts of a process's tests, and the test that it did not end. None after one that took the device along."""
    done: dict[str, dict] = {}
    running, lines = "", []
    for line in text.splitlines():
        if start := START.match(line):
            running, lines = start[1], []
        elif (end := END.match(line)) and end[2] == running:
            done[running] = {"status": end[1].lower(), "text": lines if end[1] == "FAILED" else []}
            if end[1] == "FAILED" and LASTING.search("\n".join(lines)):
                return done, ""
            running = ""
        elif running:
            lines.append(line)
    return done, running


def run_batch(program: Path, names: list[str], isa: str, silence: float) -> dict[str, dict]:
    """Runs tests until each has a verdict. silence is the longest time without a line, in seconds."""
    all_done: dict[str, dict] = {}
    left = list(names)
    env = dict(os.environ) | ({"MILLRACE_ISA": isa} if isa else {})
    while left and not stopping:
        with tempfile.TemporaryFile("w+", errors="replace") as log:
            process = subprocess.Popen([program, f"--gtest_filter={':'.join(left)}"], stdout=log, stderr=subprocess.STDOUT, env=env)
            size, since, hung = 0, time.monotonic(), False
            while process.poll() is None:
                time.sleep(0.05)
                if (now := os.fstat(log.fileno()).st_size) != size:
                    size, since = now, time.monotonic()
                if time.monotonic() - since > silence:
                    hung = True
                    process.kill()
                if stopping:
                    process.kill()
            if stopping:
                break
            log.seek(0)
            text = log.read()
        done, running = read(text)
        all_done |= {n: v for n, v in done.items() if n in left}
        if running:
            how = f"no line for {silence:.0f} s" if hung else f"the process ended with {process.returncode}"
            all_done[running] = {"status": "hung" if hung else "crashed", "text": [how, *text.splitlines()[-SHOWN:]]}
        rest = [n for n in left if n not in all_done]
        if len(rest) == len(left):  # it does not even start
            return all_done | {n: {"status": "crashed", "text": text.splitlines()[-SHOWN:]} for n in rest}
        left = rest
    return all_done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("--isas", default="", help="instruction sets, separated by commas (default: those that the harness chooses, together)")
    parser.add_argument("--filter", default="*", help="tests to run, as of --gtest_filter")
    parser.add_argument("--exclude", default="", help="tests to leave out")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--silence", type=float, default=60, help="longest time without a line before a process is killed, in seconds")
    parser.add_argument("--out", type=Path, help="JSON file of the verdicts")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)

    report: dict[str, dict] = {}
    failed = False
    for isa in args.isas.split(","):
        begin = time.monotonic()
        if isa:
            os.environ["MILLRACE_ISA"] = isa
        names = tests(args.program, f"{args.filter}-{args.exclude}")
        # Neighbors in the list are alike, also in time: each batch gets some of all.
        count = min(args.jobs * 4, len(names))
        batches = [names[i::count] for i in range(count)]
        verdicts: dict[str, dict] = {}
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            for done in pool.map(lambda b: run_batch(args.program, b, isa, args.silence), batches):
                verdicts |= done
        for n in names:
            verdicts.setdefault(n, {"status": "not run", "text": []})
        counts = collections.Counter(v["status"] for v in verdicts.values())
        bad = {n: v for n, v in sorted(verdicts.items()) if v["status"] not in ("ok", "skipped")}
        for name, v in bad.items():
            print(f"--- {isa} {name}: {v['status']}")
            print("\n".join(v["text"][:SHOWN]))
        key = isa or "all"
        report[key] = {
            "tests": len(names),
            **{k.replace(" ", "_"): n for k, n in sorted(counts.items())},
            "seconds": round(time.monotonic() - begin, 1),
            "not_passed": {n: v["status"] for n, v in bad.items()},
        }
        failed = failed or bool(bad) or not names
        print(f"{key}: {len(names)} tests: " + ", ".join(f"{n} {k}" for k, n in sorted(counts.items())) + f" in {report[key]['seconds']} s", flush=True)
        if args.out:
            args.out.write_text(json.dumps(report, indent=1))
    sys.exit(failed)


if __name__ == "__main__":
    main()
