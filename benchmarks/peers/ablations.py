"""Techniques of Millrace switched off in turn: what each gains, beside what the PPL.LLM talk credits it with."""

from dataclasses import dataclass

import systems
from serving import Case

# Eight clients of the 1.1 B model; prompts of which none is longer than a chunk.
BUSY = Case("1.1 B int8, 8 clients", systems.MODEL, "int8", clients=8, requests=16, words=100)
# What is decoded while long prompts come.
LONG = Case("1.1 B int8, 4 clients, long prompts", systems.MODEL, "int8", clients=4, requests=8, words=600)


@dataclass(frozen=True)
class Ablation:
    """The load of case on a server with the flags on, and on one with the flags off."""

    title: str
    reported: str  # by the talk
    case: Case
    on: tuple[str, ...]
    off: tuple[str, ...]


# Memory that holds the KV cache of half of the eight sequences in bf16.
SCARCE = ("--kv-memory", "16MiB")

ABLATIONS = (
    Ablation("KV cache in int8, scarce memory", "requests at once +100%", BUSY, ("--kv-type", "int8", *SCARCE), SCARCE),
    Ablation("KV cache in int8, enough memory", "", BUSY, ("--kv-type", "int8"), ()),
    Ablation("W8A8, beside bf16", "+100%", BUSY, (), ("--weights", "bf16")),
    Ablation("chunked prefill", "", LONG, (), ("--prefill-chunk", "0", "--max-batch-tokens", "4096")),
)
