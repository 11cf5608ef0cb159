"""The report of a run: a Markdown table, and the raw values beside it."""

import json
import re
import statistics
from pathlib import Path
from typing import Any

BURST_WORDS, BURST_PROMPT = 37, 125  # words of the random model's tokenizer come to about as many tokens (127)

TITLES = {"millrace": "Millrace", "llama": "llama.cpp", "openvino": "OpenVINO GenAI", "transformers": "transformers"}
PEERS = tuple(TITLES)[1:]

# Ratios to the best peer that are wanted; of times (TTFT) at most, else at least.
GOALS = {
    ("prefill 512", "bf16"): 1.05,
    ("prefill 512", "int8"): 1.65,
    ("prefill 512", "int4"): 1.3,
    ("decode 1", "bf16"): 1.0,
    ("decode 1", "int8"): 1.12,
    ("decode 1", "int4"): 1.05,
    ("decode 16", "bf16"): 1.3,
    ("decode 16", "int8"): 2.4,
    ("decode 16", "int4"): 1.7,
    ("demo model, 1 clients: tokens/s", "bf16"): 2.5,
    ("demo model, 1 clients: tokens/s", "int8"): 2.5,
    ("demo model, 64 clients: tokens/s", "bf16"): 8,
    ("demo model, 64 clients: tokens/s", "int8"): 8,
    ("burst of 16: tokens/s", "int8"): 3.5,
    ("burst of 16: TTFT p50, s", "int8"): 1 / 3,
    ("conversation: TTFT p50 of turns 2 and later, s", "bf16"): 0.7,
}

# Shares of the limits that Millrace's bench measures in the same run.
LIMIT_GOALS = {
    ("prefill", "bf16"): 0.88,
    ("prefill", "int8"): 0.80,
    ("decode 1", "bf16"): 0.92,
    ("decode 1", "int8"): 0.92,
    ("decode 1", "int4"): 0.92,
}

def write(folder: Path, raw: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    cpu = re.sub(r"[^a-z0-9]+", "-", raw["machine"]["cpu"].lower()).strip("-")
    path = folder / f"{raw['date'][:16].replace(':', '')}-{cpu}.md"
    path.write_text(markdown(raw))
    path.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n")
    return path


def markdown(raw: dict[str, Any]) -> str:
    parts = [heading(raw), comparison(raw), limits(raw), ablations(raw), left_out(raw)]
    return "\n\n".join(p for p in parts if p) + "\n"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def heading(raw: dict[str, Any]) -> str:
    m = raw["machine"]
    busy = statistics.median(v["busy"] for v in raw["loads"])
    steal = statistics.median(v["steal"] for v in raw["loads"])
    noisy = [v for v in raw["loads"] if v["busy"] + v["steal"] > 0.05]
    idle = (
        f"**not idle** in {len(noisy)} of {len(raw['loads'])} checks between the rounds: "
        f"others used {busy:.0%} of the cores, steal {steal:.0%} (medians)"
        if noisy
        else f"idle in all {len(raw['loads'])} checks between the rounds"
    )
    lines = [
        f"# Millrace and its peers, {raw['date'][:10]}",
        "",
        f"- Machine: {m['cpu']}, {m['cores']} cores; {m['flags']}; Linux {m['kernel']}",
        f"- The machine was {idle}. Load average at the start: {m['load average']}.",
        f"- Each system: {raw['threads']} threads, scheduling priority {m['priority']}; interleaved; medians.",
        f"- Commit {raw['commit']}; arguments: {' '.join(raw['arguments']) or 'none'}; values: in the JSON file",
        *(f"- {name}: {version}" for name, version in raw["versions"].items()),
    ]
    return "\n".join(lines)


def lower_is_better(metric: str) -> bool:
    return metric.endswith(", s")


def comparison(raw: dict[str, Any]) -> str:
    rows = []
    for metric, types in raw["values"].items():
        for weights, systems in types.items():
            medians = {s: statistics.median(v) for s, v in systems.items()}
            rounds = "/".join(str(n) for n in sorted({len(v) for v in systems.values()}))
            cells = [number(medians.get(s)) for s in TITLES]
            rows.append([f"{metric}, {weights}", *cells, *verdict(metric, weights, medians), rounds])
    if not rows:
        return ""
    head = ["tokens/s, or as said", *TITLES.values(), "best peer", "ratio", "goal", "met", "rounds"]
    return "## Against peers\n\n" + table(head, rows)


def verdict(metric: str, weights: str, medians: dict[str, float]) -> list[str]:
    """The best peer, the ratio to it, the goal, and whether it is met."""
    lower = lower_is_better(metric)
    peers = {s: medians[s] for s in PEERS if s in medians}
    goal = GOALS.get((metric, weights))
    wanted = f"{'<=' if lower else '>='} {goal:.2f}" if goal else ""
    if not peers:
        return ["", "", wanted, ""]
    best = (min if lower else max)(peers, key=peers.__getitem__)
    if "millrace" not in medians:
        return [TITLES[best], "", wanted, "not measured" if goal else ""]
    ratio = medians["millrace"] / peers[best]
    met = "" if not goal else "yes" if (ratio <= goal if lower else ratio >= goal) else "**no**"
    return [TITLES[best], f"{ratio:.2f}", wanted, met]


def number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def limits(raw: dict[str, Any]) -> str:
    rows = []
    for weights, results in raw["millrace"].items():
        batch1 = [r for r in results if r["batch"] == 1 and r["prompt"] == 512]
        if not batch1:
            continue
        peak = statistics.median(r["limits"]["peak_gflops"] for r in batch1)
        read = statistics.median(r["limits"]["read_gbps"] for r in batch1)
        shares = {
            "prefill": statistics.median(r["prefill_share_of_peak"] for r in batch1),
            "decode 1": statistics.median(r["decode_share_of_read_bandwidth"] for r in batch1),
        }
        cells = []
        for name, share in shares.items():
            goal = LIMIT_GOALS.get((name, weights))
            met = "" if not goal else "yes" if share >= goal else "**no**"
            cells += [f"{share:.0%}", f">= {goal:.0%}" if goal else "", met]
        rows.append([weights, f"{peak:,.0f}", f"{read:.1f}", *cells])
    if not rows:
        return ""
    head = ["", "peak, Gop/s", "read, GB/s", "prefill, of peak", "goal", "met", "decode 1, of read", "goal", "met"]
    return "## Millrace against the machine's limits, measured in the same run\n\n" + table(head, rows)


def ablations(raw: dict[str, Any]) -> str:
    if not raw["ablations"]:
        return ""
    rows = []
    for title, a in raw["ablations"].items():

        def median(name: str, key: str, a: dict[str, Any] = a) -> float:
            return statistics.median(v[key] for v in a[name])

        on, off = (median(name, "tokens_per_second") for name in ("on", "off"))
        times = [f"{1e3 * median('on', k):,.0f} / {1e3 * median('off', k):,.0f}" for k in ("ttft_p50", "gap_p50", "gap_p99")]
        rows.append([title, a["load"], number(on), number(off), f"{on / off - 1:+.0%}", a["reported"], *times])
    head = ["technique", "load", "tokens/s with", "without", "gain", "PPL.LLM talk", "TTFT p50, ms", "between tokens p50, ms", "p99, ms"]
    return "## Techniques switched off in turn\n\nTimes are with / without.\n\n" + table(head, rows)


def left_out(raw: dict[str, Any]) -> str:
    if not raw["left_out"]:
        return ""
    return "## Left out\n\n" + "\n".join(f"- {why}" for why in dict.fromkeys(raw["left_out"]))
