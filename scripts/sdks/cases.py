"""Runs the cases of a suite against the server of BASE_URL. A case is a function, sync or async, that asserts."""
import asyncio
import importlib.metadata
import inspect
import os
import sys
import traceback

BASE_URL = os.environ.get("BASE_URL", "http://127.0.0.1:8080")  # without /v1
MODEL = os.environ.get("MODEL", "tiny-chat")
KEY = "none"
QUESTION = "What is the capital of France?"
ANSWER = "Paris"
TURNS = [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": QUESTION}]


def equal(found, expected):
    assert found == expected, f"found {found!r}, expected {expected!r}"


def holds(truth, found):
    assert truth, f"found {found!r}"


def run(package, cases):
    """Runs all cases, prints those that failed, and exits with 1 if there are any."""
    failed = 0
    with asyncio.Runner() as loop:  # one for all: clients keep their connections
        for case in cases:
            try:
                if inspect.iscoroutinefunction(case):
                    loop.run(case())
                else:
                    case()
            except Exception:  # a case may fail in any way, and the next ones run nevertheless
                failed += 1
                print(f"FAILED {package}: {case.__name__}\n{traceback.format_exc(limit=-3)}")
    try:
        version = " " + importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        version = ""  # not a package
    print(f"{package}{version}: {len(cases)} cases, {failed} failed")
    sys.exit(1 if failed else 0)
