"""Targets for one H200: `must` is required, `aim` is a goal. Neither is a measurement.

A `must` for decode steps, frames and speech is less than a peer took for the same shape, dummy weights and bfloat16 on such a
device, when this was written (November 2026); an `aim` lies between that and the floor, which is the bytes of a step over 4.3 TB/s:

| | peer | floor |
|---|---|---|
| 0.6b, decode step of 1 / 8 / 32 / 64 rows | vLLM 0.20.2: 1.61 / 1.75 / 2.24 / 3.01 ms | 0.28 ms of 1 row |
| 30b, the same | vLLM 0.20.2: 4.27 / 9.35 / 16.2 / 18.5 ms | 1.4 / 6.1 / 12.8 / 14.8 ms |
| a talker's frame of 1 row | | 0.7 ms |
| Qwen3-Omni-30B, one request of 64 tokens and 20 s | vLLM-Omni 0.20: real-time factor 0.204 | |

The other targets have no peer: they bound the cost of the host and of a stored hidden state. Our own numbers are in
`benchmarks/results`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Goal:
    """Bounds in the unit of the measurement; less is better."""

    must: float
    aim: float


DECODE = {
    "0.6b": {1: Goal(0.62, 0.5), 8: Goal(0.85, 0.65), 32: Goal(1.35, 1.05), 64: Goal(2.0, 1.7)},
    "30b": {1: Goal(2.2, 1.9), 8: Goal(7.3, 6.8), 32: Goal(13.6, 13.3), 64: Goal(15.9, 15.4)},
}
"""Milliseconds of a decode step, by shape and rows."""
FRAME = {1: Goal(1.9, 1.2), 8: Goal(2.4, 1.6), 32: Goal(4.0, 2.8)}
"""Milliseconds of a frame of Qwen3-Omni's talker with all its codes, by rows."""
PREFILL = {"30b": Goal(50, 35)}
"""Milliseconds to the token of a prompt of 2,048 ids, by shape."""
IDLE = Goal(0.020, 0.005)
"""Milliseconds that the device waits between two decode steps."""
SAMPLE = Goal(0.150, 0.060)
"""Milliseconds of the host in `sample_tokens`."""
HIDDEN = Goal(1.03, 1.00)
"""Step time with a hidden state for every token, over that with none."""
RTF = {"qwen3-omni-30b": Goal(0.12, 0.08), "qwen2.5-omni-7b": Goal(0.25, 0.15)}
"""Real-time factor of one request alone, by shape: 64 text tokens, 20 seconds of speech."""


def verdict(value: float, target: Goal | None) -> str:
    """Empty without a target."""
    if target is None:
        return ""
    return "aim met" if value <= target.aim else "must met" if value <= target.must else "MISSED"


def bounds(target: Goal | None) -> str:
    """The bounds as a table's text."""
    return f"{target.must:g} / {target.aim:g}" if target is not None else ""
