"""A vocoder model, driven as its stage drives it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as fields_of
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from omni.device import Device
from omni.testing.contract import Contract


class TestedVocoder(Protocol):
    """The part of `omni_vocoder.model.VocoderModel` that the suite calls. Shapes as there."""

    num_groups: int
    sample_rate: int

    @property
    def min_first_frames(self) -> int: ...

    def new_state(self, num_rows: int) -> Any: ...

    def reset(self, state: Any, rows_B: Tensor) -> None: ...

    def decode(self, codes_BNG: Tensor, state: Any, rows_B: Tensor, first: bool) -> Tensor: ...

    def samples(self, frames: int, first: bool) -> int: ...


@dataclass(frozen=True, slots=True)
class NextFrames:
    """The next frames of some streams, one row each. codes: int64 `[B, N, G]`."""

    rows: Sequence[int]
    codes_BNG: Tensor
    first: bool


VOCODER = Contract("vocoder")
require = VOCODER.require


class VocoderBench:
    """requests: codes of sample requests, int64 `[N, G]`, of different length. waves: `[S]` of each, in one pass."""

    def __init__(self, model: TestedVocoder, device: Device, requests: Sequence[Tensor], tolerance: float) -> None:
        self.model = model
        self.device = device
        self.requests = requests
        self.tolerance = tolerance
        self.waves: list[Tensor] = []
        self.guard: Callable[[], AbstractContextManager[object]] = nullcontext
        self._stream = device.stream("check-vocoder")

    @property
    def fewest(self) -> int:
        """Frames of a first chunk."""
        return self.model.min_first_frames

    def new_state(self, rows: int) -> Any:
        """State of that many streams, and a null row after them."""
        with torch.inference_mode():
            return self.model.new_state(rows + 1)

    def run(self, state: Any, frames: NextFrames) -> Tensor:
        """The samples `[B, S]` of one chunk, on the host."""
        model, place = self.model, self.device.torch_device
        wanted = model.samples(frames.codes_BNG.shape[1], frames.first)
        with torch.inference_mode():
            codes_BNG = frames.codes_BNG.to(place, copy=True)
            rows_B = torch.tensor(list(frames.rows), dtype=torch.int64, device=place)
            out: list[Tensor] = []
            with self.guard():
                if frames.first:
                    self.device.launch(self._stream, reset_rows, model, state, rows_B)
                self.device.launch(self._stream, decode_rows, model, state, codes_BNG, rows_B, frames.first, out)
            self.device.synchronize()
            (wav_BS,) = out
            same = torch.equal(codes_BNG.cpu(), frames.codes_BNG)
        require(same, "decode leaves its codes as they are", "clone codes_BNG before you write to it")
        shape = len(frames.rows), wanted
        require(
            isinstance(wav_BS, Tensor) and wav_BS.is_floating_point() and tuple(wav_BS.shape) == shape,
            f"decode of {frames.codes_BNG.shape[1]} frames{' that are the first' if frames.first else ''} gives floating-point "
            f"samples {list(shape)}, as `samples` says, not {_described(wav_BS)}",
            "make `samples` and `decode` agree; a first chunk is shorter by the lookahead",
        )
        wav_BS = wav_BS.float().cpu()
        bounded = bool(wav_BS.isfinite().all()) and bool((wav_BS.abs() <= 1).all())
        require(
            bounded,
            "samples are finite and in [-1, 1]",
            "clamp them: wav.clamp(-1, 1); NaN comes from uninitialized state",
        )
        return wav_BS

    def stream(self, codes_NG: Tensor, sizes: Sequence[int], state: Any = None, row: int = 0) -> Tensor:
        """The samples `[S]` of a request in chunks; the last size is repeated to its end."""
        state = self.new_state(1) if state is None else state
        parts = [self.run(state, frames)[0] for frames in chunks(codes_NG, sizes, row)]
        return torch.cat([torch.empty(0), *parts])

    def require_same(self, wave_S: Tensor, request: int, how: str, remedy: str) -> None:
        """The waveform is that of one pass over the request."""
        right_S = self.waves[request]
        require(
            wave_S.shape == right_S.shape,
            f"{how} gives {len(right_S)} samples, as one pass over all {len(self.requests[request])} frames does, not "
            f"{len(wave_S)}",
            "samples of a stream do not depend on its chunks: see `samples`",
        )
        peak = float(right_S.abs().max()) if len(right_S) else 0.0
        off_S = (wave_S - right_S).abs()
        worst = int(off_S.argmax()) if len(off_S) else 0
        require(
            not len(off_S) or float(off_S.max()) <= self.tolerance * peak,
            f"{how} gives the waveform of one pass: sample {worst} of {len(right_S)} is off by "
            f"{float(off_S[worst]) if len(off_S) else 0:.2e}, beyond {self.tolerance:.0e} of the peak {peak:.2f}",
            remedy,
        )


def chunks(codes_NG: Tensor, sizes: Sequence[int], row: int = 0) -> list[NextFrames]:
    """A request in chunks; the last size is repeated to its end."""
    made: list[NextFrames] = []
    start = 0
    while start < len(codes_NG):
        size = sizes[min(len(made), len(sizes) - 1)]
        made.append(NextFrames((row,), codes_NG[None, start : start + size], start == 0))
        start += size
    return made


def state_bytes(value: object, seen: set[int] | None = None) -> int:
    """Bytes of all tensors in a state, or of a model: fields of dataclasses and objects, items of lists and dicts."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, nn.Module):
        return state_bytes(vars(value), seen)
    if isinstance(value, dict):
        return sum(state_bytes(each, seen) for each in value.values())
    if isinstance(value, list | tuple | set):
        return sum(state_bytes(each, seen) for each in value)
    if is_dataclass(value):
        return sum(state_bytes(getattr(value, field.name), seen) for field in fields_of(value))
    return 0


def reset_rows(model: TestedVocoder, state: Any, rows_B: Tensor) -> None:
    model.reset(state, rows_B)


def decode_rows(
    model: TestedVocoder, state: Any, codes_BNG: Tensor, rows_B: Tensor, first: bool, out: list[Tensor]
) -> None:
    out.append(model.decode(codes_BNG, state, rows_B, first))


def _described(value: object) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
