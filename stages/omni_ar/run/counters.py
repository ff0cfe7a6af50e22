"""Counts of a request at a stage, and of its launched steps."""

from omni.utils.duration_counts import DurationCounts
from omni_ar.run.request import ArRequest


class LaunchCounts:
    """Counts of the steps that a worker has launched."""

    def __init__(self) -> None:
        self._steps = self._decode_rows = self._prefill_tokens = 0
        self._sampling = DurationCounts()

    def add(self, decode_rows: int, prefill_tokens: int, sampling_ns: int) -> None:
        """sampling_ns: host time of `sample_tokens`."""
        self._steps += 1
        self._decode_rows += decode_rows
        self._prefill_tokens += prefill_tokens
        self._sampling.add(sampling_ns)

    def numbers(self, further_tokens: int) -> dict[str, int]:
        """further_tokens: those that drafts have added to the tokens of decode steps."""
        return self._sampling.numbers("sample_tokens") | {
            "steps": self._steps,
            "prefill_tokens": self._prefill_tokens,
            "decode_tokens": self._decode_rows + further_tokens,
        }


def request_counts(request: ArRequest) -> dict[str, int]:
    counts = {
        "tokens": len(request.outputs),
        "prompt_tokens": request.length if request.prompt else 0,
        "cached_tokens": request.num_cached_tokens or 0,
    }
    return counts | request.drafts.numbers() | ({"frames": request.num_frames} if request.num_frames else {})
