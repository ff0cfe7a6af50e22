"""The conformance suite of vocoder models: `check_vocoder`."""

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from omni.device import Device


class Vocoder(Protocol):
    """What the suite calls of an `omni_vocoder.model.VocoderModel`. Shapes as there."""

    num_groups: int
    sample_rate: int

    @property
    def min_first_frames(self) -> int: ...

    def new_state(self, num_rows: int) -> Any: ...

    def reset(self, state: Any, rows_B: Tensor) -> None: ...

    def decode(self, codes_BNG: Tensor, state: Any, rows_B: Tensor, first: bool) -> Tensor: ...

    def samples(self, frames: int, first: bool) -> int: ...


def check_vocoder(
    model: Vocoder,
    *,
    codebook_size: int,
    whole: Callable[[Tensor], Tensor] | None = None,
    frames: int = 24,
    device: Device | None = None,
    tolerance: float = 1e-4,
) -> None:
    """Raises AssertionError, which names the broken promise and a remedy, if a model breaks one of
    `omni_vocoder.model.VocoderModel`.

    model: on the device, weights loaded, in float32.
    codebook_size: of each code group: the suite draws codes below it, and a few beyond it, which the model must clamp.
    whole: the author's own pass over a whole request: codes int64 `[N, G]` to samples `[S]`. None compares with one
        `decode` of all frames.
    frames: of a request; more than the layers look back.
    device: of the model; None is the CPU.
    tolerance: of the waveform's peak.
    """
    raise NotImplementedError
