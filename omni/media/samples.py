"""Media as arrays or tensors: checks of sound, and keys."""

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from omni.errors import InputError, quoted, shortened

Samples = NDArray[np.generic] | torch.Tensor
"""`[n]` or `[channels, n]`: floats within -1..1, int16 or int32."""

_MAX_RATE = 768_000
_MAX_CHANNELS = 32
_LOUDEST = 16.0
"""Floats beyond it are taken for unscaled integers; a clipped recording stays well below."""


def check_values(values: NDArray[np.generic] | torch.Tensor, field: str) -> None:
    """Raises InputError for arrays and tensors without plain numbers, whose shape may be unusable too."""
    remedy = "give an array or a tensor of plain numbers"
    if isinstance(values, np.ndarray):
        if isinstance(values, np.ma.MaskedArray):
            raise InputError(field, "is a masked array", "fill in the masked values, and give a plain array")
        if values.dtype.kind not in "fiub":
            raise InputError(field, f"holds {shortened(str(values.dtype))} values", remedy)
        return
    for wrong, problem in (
        (values.is_nested, "is a nested tensor"),
        (values.layout != torch.strided, f"is a {values.layout} tensor"),
        (values.is_meta, "is a tensor on the meta device, which holds no values"),
        (values.is_quantized, "is a quantized tensor"),
        (values.is_complex(), "is a complex tensor"),
    ):
        if wrong:
            raise InputError(field, problem, remedy)


def to_numpy(values: NDArray[np.generic] | torch.Tensor, field: str) -> NDArray[np.generic]:
    """The values on the host, in their own dtype (bfloat16 and the like, which numpy lacks, as float32). Raises InputError."""
    check_values(values, field)
    if isinstance(values, np.ndarray):
        # Subclasses too, in this machine's byte order.
        return np.asarray(values, values.dtype.newbyteorder("="))
    try:
        tensor = values.detach().cpu().resolve_neg()
        array: NDArray[np.generic] = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    except (RuntimeError, TypeError) as error:
        problem = f"is a tensor whose values cannot be read ({shortened(str(error))})"
        raise InputError(field, problem, "give it as a numpy array") from error
    return array


def to_mono(samples: Samples, field: str) -> NDArray[np.float32]:
    """Mono float32 `[n]`: channels averaged, integers scaled to -1..1. Raises InputError for a wrong type or shape."""
    check_shape(samples, field)
    array = to_numpy(samples, field)
    if array.ndim == 1:
        return np.ascontiguousarray(_to_float(array, field))
    mono: NDArray[np.float32] = _to_float(array, field).mean(axis=0)
    return mono


def check_shape(samples: Samples, field: str) -> tuple[int, int]:
    """Numbers of frames and channels. Raises InputError for a wrong type or shape."""
    check_values(samples, field)
    shape = tuple(samples.shape)
    if len(shape) == 1:
        return shape[0], 1
    if len(shape) == 2 and 0 < shape[0] <= min(_MAX_CHANNELS, shape[1]):
        return shape[1], shape[0]
    raise InputError(field, f"has shape {quoted(list(shape))}", "give [samples] or [channels, samples]")


def check_rate(rate: int, field: str) -> None:
    if not 0 < rate <= _MAX_RATE:
        raise InputError(field, f"has a sample rate of {quoted(rate)} Hz", f"give sound sampled at 1 to {_MAX_RATE} Hz")


def _to_float(array: NDArray[np.generic], field: str) -> NDArray[np.float32]:
    # Values beyond the range of float32 become infinite, which is reported.
    with np.errstate(over="ignore"):
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


def content_hash(content: NDArray[np.generic] | Image.Image) -> str:
    """Key of the dtype, shape and bytes, 32 hexadecimal digits; equal if and only if the content (of a picture, its pixels) is."""
    array = np.ascontiguousarray(content)
    digest = hashlib.blake2b(f"{array.dtype.str}{array.shape}".encode(), digest_size=16)
    digest.update(array.data)
    return digest.hexdigest()
