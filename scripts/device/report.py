#!/usr/bin/env python3
"""Writes the report of a run of run.sh: DATE-cuda-GPU.json with all values, and .md with tables, for benchmarks/results.

report.py --values DIR --out DIR --model DIR --backend B --commit C
report.py --json FILE      writes the tables of a JSON file again, beside it
"""

import argparse
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# Goals for a Llama of 1.1 billion parameters on an H100.
PEAK_TFLOPS = 790  # of products in bf16
GOAL_READ, GOAL_BATCH, GOAL_PREFILL, GOAL_PEER = 0.50, 20, 0.25, 1.0
GOAL_WEIGHTS = ("bf16", "int4")

FORMULAS = """\
- Copy bandwidth: PyTorch copies 2 GiB on the device, bytes read and written over the median time.
- Decode, of the copy bandwidth: bytes of the weights of all linear ops, with their scales, over the time of a step of one sequence. Keys and values are not counted.
- Prefill, TFLOP/s: (2 x parameters of the layers' linear ops x tokens + 2 x parameters of the output layer, for the last token, + 4 x layers x heads x head size x pairs of tokens) over the time of one prompt.
- Millrace's times are those of whole steps: the host's work, the kernels, and the copy of the likeliest tokens to the host. Those of transformers include the choice of the token on the device.
"""


def load(path: Path) -> Any:
    """None if the file is not there, or was cut off when its step ended."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def gather(args: argparse.Namespace) -> dict[str, Any]:
    v = args.values
    steps = [line.split() for line in (v / "steps.txt").read_text().splitlines()]
    raw = {
        "date": args.date,
        "commit": args.commit,
        "backend": args.backend,
        "arguments": args.arguments,
        "processor": processor(),
        "steps": [{"step": s, "result": r, "seconds": int(t)} for s, r, t in steps],
        "model": load(args.model / "config.json"),
        "bench": {w: b for w in ("bf16", "int8", "int4") if (b := load(v / f"bench-{w}.json"))},
    }
    for name in ("info", "harness", "device", "goldens", "invariance", "peer"):
        raw[name] = load(v / f"{name}.json")
    raw["goals"] = goals(raw)
    return raw


def processor() -> str:
    text = Path("/proc/cpuinfo").read_text()
    name = re.search(r"^model name\s*: (.*)", text, re.M)
    return f"{name[1] if name else 'unknown'}, {len(re.findall(r'^processor', text, re.M))} cores"


def gpu_name(raw: dict[str, Any]) -> str:
    devices = [b["device"]["name"] for b in raw["bench"].values()]
    return (raw["info"] or {}).get("gpu") or (devices[0] if devices else "unknown GPU")


def case(raw: dict[str, Any], weights: str, batch: int) -> dict[str, Any] | None:
    results = raw["bench"].get(weights, {}).get("results", [])
    return next((r for r in results if r["batch"] == batch), None)


def layer_parameters(model: dict[str, Any]) -> int:
    """Sums over the linear ops of a layer."""
    hidden, heads = model["hidden_size"], model["num_attention_heads"]
    return hidden * hidden // heads * (2 * heads + 2 * model["num_key_value_heads"]) + 3 * hidden * model["intermediate_size"]


def parameters(model: dict[str, Any]) -> int:
    return model["num_hidden_layers"] * layer_parameters(model) + 2 * model["hidden_size"] * model["vocab_size"]


def prefill_flops(model: dict[str, Any], tokens: int) -> float:
    hidden, layers = model["hidden_size"], model["num_hidden_layers"]
    pairs = tokens * (tokens + 1) / 2
    return 2 * layers * layer_parameters(model) * tokens + 2 * hidden * model["vocab_size"] + 4 * layers * hidden * pairs


def ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def measures(raw: dict[str, Any], weights: str) -> dict[str, float | None]:
    """What the goals are about; None: not measured."""
    one, many, info = case(raw, weights, 1), case(raw, weights, 64), raw["info"]
    m: dict[str, float | None] = {"read": None, "batch": None, "prefill": None, "tflops": None}
    if one:
        m["read"] = ratio(one["decode_weight_gbps"], info["copy_gbps"] if info else None)
        if raw["model"]:
            m["tflops"] = prefill_flops(raw["model"], one["prompt"]) / one["ttft_seconds"] / 1e12
            m["prefill"] = m["tflops"] / PEAK_TFLOPS
        if many:
            m["batch"] = ratio(many["decode_tokens_per_second"], one["decode_tokens_per_second"])
    return m


def peer_ratios(raw: dict[str, Any], weights: str, compiled: bool = False) -> dict[str, float | None]:
    peer, one = raw["peer"] or {}, case(raw, weights, 1)
    decode = peer.get("decode_compiled" if compiled else "decode", {})
    found: dict[str, float | None] = {}
    if not compiled:
        found["prefill 512"] = ratio(peer.get("prefill_seconds"), one["ttft_seconds"] if one else None)
    for batch in (1, 16, 64):
        ours = case(raw, weights, batch)
        found[f"decode {batch}"] = ratio(ours["decode_tokens_per_second"] if ours else None, decode.get(str(batch)))
    return found


def goal(name: str, found: float | None, wanted: float, form: str) -> dict[str, Any]:
    result = "not measured" if found is None else "PASS" if found >= wanted else "MISS"
    return {"goal": name, "found": None if found is None else format(found, form), "wanted": f">= {format(wanted, form)}", "result": result}


def checked(raw: dict[str, Any], step: str, name: str, ok: bool | None, found: str) -> dict[str, Any]:
    """A goal that all checks of a step pass. One that ended early misses it."""
    ended = next((s["result"] for s in raw["steps"] if s["step"] == step), "ok")
    if ended == "time-limit":
        ok, found = False, f"{found}, then the time limit".removeprefix(", then ")
    return {"goal": name, "found": found, "wanted": "all", "result": "not measured" if ok is None else "PASS" if ok else "MISS"}


def goals(raw: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    if harness := raw["harness"]:
        for isa, h in harness.items():
            bad = len(h["not_passed"])
            rows.append(checked(raw, "harness", f"kernel harness, {isa}", bad == 0 < h["tests"], f"{h.get('ok', 0)} of {h['tests'] - h.get('skipped', 0)}, {h.get('skipped', 0)} skipped"))
    else:
        rows.append(checked(raw, "harness", "kernel harness", None, ""))
    device = raw["device"]
    counts = device["counts"] if device else {}
    passed, failed = counts.get("PASS", 0), counts.get("FAIL", 0)
    rows.append(checked(raw, "device", "Go tests on the device", None if not device else not device["failed"], f"{passed} of {passed + failed}" if device else ""))
    for name, key in (("16 greedy tokens as ref, or a near tie", "goldens"), ("the same bits in any batch and chunking; a full pool", "invariance")):
        results = raw[key]
        ok = sum(r["ok"] for r in results) if results else 0
        rows.append(checked(raw, key, name, None if results is None else ok == len(results) > 0, f"{ok} of {len(results)}" if results else ""))
    for w in GOAL_WEIGHTS:
        m = measures(raw, w)
        rows.append(goal(f"{w}: decode of 1, of the copy bandwidth", m["read"], GOAL_READ, ".0%"))
        rows.append(goal(f"{w}: decode of 64 beside 1", m["batch"], GOAL_BATCH, ".1f"))
        rows.append(goal(f"{w}: prefill of 512, of {PEAK_TFLOPS} TFLOP/s", m["prefill"], GOAL_PREFILL, ".0%"))
        for what, found in peer_ratios(raw, w).items():
            rows.append(goal(f"{w}: {what} beside transformers", found, GOAL_PEER, ".2f"))
    return rows


# ---- Markdown


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rows])


def number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def markdown(raw: dict[str, Any]) -> str:
    info, peer = raw["info"] or {}, raw["peer"] or {}
    lines = [
        f"# Millrace on an NVIDIA GPU, {raw['date'][:10]}",
        "",
        f"- Machine: {gpu_name(raw)}, driver {info.get('driver') or 'unknown'}; {raw['processor']}",
        f"- Commit {raw['commit']}; arguments: {raw['arguments'] or 'none'}; values: in the JSON file",
        f"- Made by scripts/device/run.sh, which is [described](../../docs/cuda.md#measure). Steps: {', '.join(step(s) for s in raw['steps'])}.",
    ]
    if info:
        lines.append(f"- Limits measured in this run: copy {info['copy_gbps']:,.0f} GB/s, products in bf16 {info['product_tflops']:,.0f} TFLOP/s (PyTorch {info['torch']})")
    if raw["bench"]:
        lines.append(f"- Model: a Llama of random weights, {parameters(raw['model']) / 1e9:.2g} billion parameters")
    lines += ["", "## Goals", "", table(["goal", "found", "wanted", "result"], [[g["goal"], g["found"] or "", g["wanted"], mark(g["result"])] for g in raw["goals"]])]
    if raw["bench"]:
        rows = []
        for w in raw["bench"]:
            one, m = case(raw, w, 1), measures(raw, w)
            decode = [number(c["decode_tokens_per_second"]) if (c := case(raw, w, b)) else "" for b in (1, 16, 64)]
            prefill = number(one["prefill_tokens_per_second"]) if one else ""
            read = f"{m['read']:.0%}" if m["read"] else ""
            rows.append([f"Millrace, {w}", prefill, number(m["tflops"]), *decode, read])
        for title, key in (("transformers, SDPA", "decode"), ("the same, compiled, static cache", "decode_compiled")):
            if peer.get(key):
                prefill = number(peer["prompt"] / peer["prefill_seconds"]) if key == "decode" else ""
                rows.append([f"{title}, bf16", prefill, "", *[number(peer[key].get(str(b))) for b in (1, 16, 64)], ""])
        head = ["tokens/s", "prefill 512", "TFLOP/s", "decode 1", "decode 16", "decode 64", "decode 1, of the copy bandwidth"]
        lines += ["", "## Speed", "", table(head, rows), "", FORMULAS.rstrip()]
    if peer:
        lines.append(f"- Peer: transformers {peer['transformers']}, PyTorch {peer['torch']}" + (f"; compiled: {peer['compile_error']}" if "compile_error" in peer else ""))
    lines += faults(raw)
    return "\n".join(lines) + "\n"


def step(s: dict[str, Any]) -> str:
    return f"{s['step']} {s['seconds']} s" + ("" if s["result"] == "ok" else f" (**{s['result']}**)")


def mark(result: str) -> str:
    return f"**{result}**" if result == "MISS" else result


def faults(raw: dict[str, Any]) -> list[str]:
    """What did not pass, by name."""
    lines = []
    for isa, h in (raw["harness"] or {}).items():
        lines += [f"- {isa}: {name}: {status}" for name, status in h["not_passed"].items()]
    lines += [f"- Go: {name}" for name in (raw["device"] or {}).get("failed", [])]
    for g in raw["goldens"] or []:
        if not g["ok"]:
            lines.append(f"- {g['name']}: {g['tokens']}" + (f", logits off by {g['share']:.2%} of the largest" if "share" in g else f": {g['error']}"))
    lines += [f"- {i['case']}: {i.get('error') or ', '.join(i['failed']) or 'answers differ'}" for i in raw["invariance"] or [] if not i["ok"]]
    shown = 60
    more = [f"- and {len(lines) - shown} more, in the JSON file"] if len(lines) > shown else []
    return ["", "## Not passed", "", *lines[:shown], *more] if lines else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=Path, help="folder of the steps' JSON files")
    parser.add_argument("--out", type=Path, help="folder of the report")
    parser.add_argument("--model", type=Path, default=Path("none"), help="folder of the random model")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--arguments", default="")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--date", default=datetime.now(UTC).isoformat(timespec="seconds"), help="when the run began, UTC")
    parser.add_argument("--json", type=Path, help="a report's JSON file to write the tables of")
    args = parser.parse_args()
    if args.json:
        raw = load(args.json)
        raw["goals"] = goals(raw)
        args.json.with_suffix(".md").write_text(markdown(raw))
        return
    raw = gather(args)
    gpu = re.sub(r"[^a-z0-9]+", "-", gpu_name(raw).lower()).strip("-")
    path = args.out / f"{raw['date'][:16].replace(':', '')}-{args.backend}-{gpu}.md"
    path.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n")
    path.write_text(markdown(raw))
    print(path.read_text())
    print(f"written to {path}")


if __name__ == "__main__":
    main()
