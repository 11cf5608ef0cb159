#!/usr/bin/env python3
"""Measures the limits of a GPU, and transformers with SDPA attention on it, by PyTorch.

peer.py limits --out FILE              copy bandwidth, and products of large matrices
peer.py peer --model DIR --out FILE    prefill and decode of a model
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

CUDA = torch.cuda.is_available()  # without a GPU the script can only be tried
DEVICE = "cuda" if CUDA else "cpu"
PROMPT, GEN = (512, 32) if CUDA else (64, 4)


def synchronize() -> None:
    if CUDA:
        torch.cuda.synchronize()


def median_time(f: Callable[[], object], repeat: int, warm_up: int = 3) -> float:
    """Seconds of a call, the device waited for."""
    for _ in range(warm_up):
        f()
    times = []
    for _ in range(repeat):
        synchronize()
        begin = time.perf_counter()
        f()
        synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def driver() -> str:
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.strip().split("\n")[0]
    except OSError:
        return ""


def limits() -> dict[str, Any]:
    size = 2 << 30 if CUDA else 64 << 20
    a = torch.randint(0, 255, (size,), dtype=torch.uint8, device=DEVICE)
    b = torch.empty_like(a)
    copy = median_time(lambda: b.copy_(a), 20)
    del a, b
    n = 8192 if CUDA else 512
    x, y = (torch.randn(n, n, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    out = torch.empty_like(x)
    product = median_time(lambda: torch.mm(x, y, out=out), 20)
    return {
        "gpu": torch.cuda.get_device_name() if CUDA else "none",
        "driver": driver(),
        "memory_bytes": torch.cuda.get_device_properties(0).total_memory if CUDA else 0,
        "copy_bytes": size,
        "copy_gbps": 2 * size / copy / 1e9,  # read and written
        "product_size": n,
        "product_tflops": 2 * n**3 / product / 1e12,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


class Peer:
    """A model as transformers loads it. Tokens are random: times do not depend on them."""

    def __init__(self, path: Path) -> None:
        import transformers
        from safetensors.torch import load_file

        config = transformers.AutoConfig.from_pretrained(path)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
        # The rotary table is no part of the checkpoint: the module is made again where it is used.
        model.load_state_dict(load_file(path / "model.safetensors", device=DEVICE), assign=True)
        model.model.rotary_emb = type(model.model.rotary_emb)(config).to(DEVICE)
        self.model = model.eval()
        self.vocab = config.vocab_size
        self.cache: Callable[[], Any] = lambda: transformers.DynamicCache(config=config)
        self.static: Callable[[int, int], Any] = lambda batch, length: transformers.StaticCache(config=config, max_cache_len=length)
        self.version = transformers.__version__

    def tokens(self, batch: int, n: int) -> torch.Tensor:
        return torch.randint(0, self.vocab, (batch, n), device=DEVICE)

    def prefill(self, batch: int, cache: Any = None) -> Any:
        cache = cache or self.cache()
        self.model(self.tokens(batch, PROMPT), past_key_values=cache, use_cache=True, logits_to_keep=1)
        return cache

    def decode(self, batch: int, repeat: int) -> float:
        """Seconds of GEN greedy steps after a prompt."""
        times = []
        for _ in range(repeat + 1):
            cache = self.prefill(batch)
            token = self.tokens(batch, 1)
            synchronize()
            begin = time.perf_counter()
            for _ in range(GEN):
                token = self.model(token, past_key_values=cache, use_cache=True).logits[:, -1].argmax(-1, keepdim=True)
            synchronize()
            times.append(time.perf_counter() - begin)
        return statistics.median(times[1:])  # the first warms up

    def decode_compiled(self, batch: int, repeat: int) -> float:
        """The same with a static cache, compiled and replayed as a CUDA graph."""
        step = torch.compile(self.model.forward, mode="reduce-overhead", fullgraph=True)
        cache = self.static(batch, PROMPT + GEN)
        times = []
        for _ in range(repeat + 2):
            cache.reset()
            self.prefill(batch, cache)
            token = self.tokens(batch, 1)
            synchronize()
            begin = time.perf_counter()
            for i in range(GEN):
                position = torch.full((batch, 1), PROMPT + i, device=DEVICE)
                logits = step(token, past_key_values=cache, use_cache=True, position_ids=position).logits
                token = logits[:, -1].argmax(-1, keepdim=True).clone()
            synchronize()
            times.append(time.perf_counter() - begin)
        return statistics.median(times[2:])


def peer(args: argparse.Namespace) -> None:
    begin = time.monotonic()
    p = Peer(args.model)
    print(f"loaded in {time.monotonic() - begin:.1f} s", flush=True)
    result: dict[str, Any] = {"transformers": p.version, "torch": torch.__version__, "prompt": PROMPT, "gen": GEN, "decode": {}, "decode_compiled": {}}

    def save(line: str) -> None:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
        print(f"{line} ({time.monotonic() - begin:.0f} s)", flush=True)

    with torch.inference_mode():
        result["prefill_seconds"] = median_time(lambda: p.prefill(1), 10)
        save(f"prefill of {PROMPT}: {PROMPT / result['prefill_seconds']:,.0f} tokens/s")
        for batch in (1, 16, 64):
            seconds = p.decode(batch, 3)
            result["decode"][batch] = batch * GEN / seconds
            save(f"decode, {batch} sequences: {result['decode'][batch]:,.0f} tokens/s")
        for batch in (1, 64, 16):
            if args.seconds - (time.monotonic() - begin) < args.compile_seconds:
                print(f"compiled decode, {batch} sequences: left out, fewer than {args.compile_seconds} s are left")
                continue
            try:
                seconds = p.decode_compiled(batch, 3)
            except Exception as e:  # the figures above count without it
                result["compile_error"] = f"{type(e).__name__}: {e}"[:500]
                save(f"compiled decode: {result['compile_error']}")
                break
            result["decode_compiled"][batch] = batch * GEN / seconds
            save(f"decode compiled, {batch} sequences: {result['decode_compiled'][batch]:,.0f} tokens/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("limits", "peer"))
    parser.add_argument("--model", type=Path)
    parser.add_argument("--seconds", type=float, default=90, help="time for all of it")
    parser.add_argument("--compile-seconds", type=float, default=40, help="least time left for compiling a case")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.what == "peer":
        peer(args)
        return
    result = limits()
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    json.dump(result, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
