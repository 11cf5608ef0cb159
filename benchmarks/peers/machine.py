"""What Linux says about this machine, and whether anything else runs on it."""

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

# What decides the kernels of the systems.
FLAGS = ("avx2", "f16c", "fma", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
IDLE = 0.05  # of all cores: more counts as busy


@dataclass(frozen=True)
class Load:
    """Shares of all cores' time, while nothing of the benchmark runs."""

    busy: float  # other processes
    steal: float  # other guests of the host

    @property
    def idle(self) -> bool:
        return self.busy + self.steal <= IDLE


def load(seconds: float = 1.0) -> Load:
    """Watches the machine for the given time."""
    before = _ticks()
    time.sleep(seconds)
    user, nice, system, idle, iowait, irq, softirq, steal = (b - a for a, b in zip(before, _ticks(), strict=True))
    total = max(user + nice + system + idle + iowait + irq + softirq + steal, 1)
    return Load((user + nice + system + irq + softirq) / total, steal / total)


def _ticks() -> list[int]:
    return [int(v) for v in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]


def describe() -> dict[str, str]:
    info: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        info.setdefault(key.strip(), value.strip())
    flags = set(info.get("flags", "").split())
    policy = {os.SCHED_FIFO: "FIFO", os.SCHED_RR: "RR"}.get(os.sched_getscheduler(0))
    return {
        "cpu": f"{info.get('model name')} (family {info.get('cpu family')}, model {info.get('model')})",
        "cores": str(len(os.sched_getaffinity(0))),
        "flags": " ".join(f for f in FLAGS if f in flags),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load average": Path("/proc/loadavg").read_text().split()[0],
        "priority": f"{policy} {os.sched_getparam(0).sched_priority}" if policy else "normal",
    }
