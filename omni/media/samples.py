"""Sound given as an array or a tensor, and the checks that every sound passes."""

import numpy as np
import torch
from numpy.typing import NDArray

from omni.errors import InputError

Samples = NDArray[np.generic] | torch.Tensor
"""`[n]` or `[channels, n]`: floats within -1..1, int16 or int32."""

_MAX_RATE = 768_000
_MAX_CHANNELS = 32
_LOUDEST = 16.0
"""Beyond it, floats are taken to be integers that were never scaled; a clipped recording stays well below."""


def to_numpy(values: NDArray[np.generic] | torch.Tensor) -> NDArray[np.generic]:
    """The values on the host, in their own dtype (bfloat16, which numpy lacks, as float32)."""
    if isinstance(values, np.ndarray):
        return values
    tensor = values.detach().cpu()
    array: NDArray[np.generic] = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    return array


def to_mono(samples: Samples, field: str) -> NDArray[np.float32]:
    """Mono float32 `[n]`: channels averaged, integers scaled to -1..1. Raises InputError for what is no sound."""
    array = to_numpy(samples)
    if array.ndim == 1:
        return np.ascontiguousarray(_to_float(array, field))
    if array.ndim == 2 and 0 < array.shape[0] <= min(_MAX_CHANNELS, array.shape[1]):
        mono: NDArray[np.float32] = _to_float(array, field).mean(axis=0)
        return mono
    raise InputError(field, f"has shape {list(array.shape)}", "give [samples] or [channels, samples]")


def check_rate(rate: int, field: str) -> None:
    if not 0 < rate <= _MAX_RATE:
        raise InputError(field, f"has a sample rate of {rate} Hz", f"give sound sampled at 1 to {_MAX_RATE} Hz")


def check_length(samples: int, rate: int, field: str, min_seconds: float, max_seconds: float) -> None:
    seconds = samples / rate
    if samples == 0:
        raise InputError(field, "is empty (0 samples)", f"give at least {min_seconds:g} s of sound")
    if seconds < min_seconds:
        raise InputError(field, f"is too short ({seconds:.3g} s)", f"give at least {min_seconds:g} s of sound")
    if seconds > max_seconds:
        raise InputError(field, f"is too long ({seconds:.1f} s)", f"give at most {max_seconds:g} s of sound")


def _to_float(array: NDArray[np.generic], field: str) -> NDArray[np.float32]:
    values = array.astype(np.float32) if array.dtype.kind in "fi" else np.zeros(0, np.float32)
    if array.dtype.kind == "f":
        loudest = float(np.abs(values).max(initial=0))
        if np.isfinite(loudest) and loudest > _LOUDEST:
            raise InputError(field, f"has samples of {loudest:.3g}", "scale floats to -1 to 1, or give int16 or int32")
        return values
    if array.dtype == np.int16:
        return values / np.float32(2**15)
    if array.dtype == np.int32:
        return values / np.float32(2**31)
    raise InputError(field, f"holds {array.dtype} samples", "give float samples between -1 and 1, int16 or int32")
