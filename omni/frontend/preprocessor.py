"""Checks fields of preprocessor_config.json that transformers takes unchecked, and that would fail every request."""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from omni.checkpoint.checks import OTHER_MODEL
from omni.checkpoint.json_file import MAX_BYTES, read_as, read_object
from omni.errors import CheckpointError, quoted

_Count = Annotated[int, Meta(ge=1, le=2**31)]
_Side = Annotated[int, Meta(ge=1, le=1024)]
_Real = Annotated[float, Meta(ge=-1e6, le=1e6)]
_Positive = Annotated[float, Meta(gt=0, le=1e6)]
_Size = Annotated[int, Meta(ge=1, le=2**16)]


class _Pictures(msgspec.Struct):
    """Pixels of a picture, in `size` and as `min_pixels` and `max_pixels`."""

    shortest_edge: _Count | None = None
    longest_edge: _Count | None = None


class _Preprocessor(msgspec.Struct):
    """Of pictures, then of sound. Missing fields have transformers' defaults; so has null where None is allowed."""

    patch_size: _Side | msgspec.UnsetType = msgspec.UNSET
    merge_size: _Side | msgspec.UnsetType = msgspec.UNSET
    temporal_patch_size: _Side | msgspec.UnsetType = msgspec.UNSET
    image_mean: Annotated[list[_Real], Meta(min_length=3, max_length=3)] | msgspec.UnsetType = msgspec.UNSET
    image_std: Annotated[list[_Positive], Meta(min_length=3, max_length=3)] | msgspec.UnsetType = msgspec.UNSET
    rescale_factor: _Positive | msgspec.UnsetType = msgspec.UNSET
    resample: Annotated[int, Meta(ge=0, le=5)] | msgspec.UnsetType = msgspec.UNSET
    do_rescale: bool | None = None
    do_normalize: bool | None = None
    do_convert_rgb: bool | None = None
    size: _Pictures | None = None
    min_pixels: _Count | None = None
    max_pixels: _Count | None = None
    feature_size: _Size | msgspec.UnsetType = msgspec.UNSET
    sampling_rate: _Count | msgspec.UnsetType = msgspec.UNSET
    hop_length: _Size | msgspec.UnsetType = msgspec.UNSET
    n_fft: _Size | msgspec.UnsetType = msgspec.UNSET
    chunk_length: _Count | msgspec.UnsetType = msgspec.UNSET
    dither: Annotated[float, Meta(ge=0, le=1e3)] | msgspec.UnsetType = msgspec.UNSET
    padding_value: _Real | msgspec.UnsetType = msgspec.UNSET


def check_preprocessor(folder: Path) -> None:
    """Raises CheckpointError, naming the field, if the file is missing or has values that no processor can use."""
    path = folder / "preprocessor_config.json"
    resized = read_object(path).get("do_resize", True)
    if resized is not True:
        # Pictures must be divisible into patches: those of most sizes would fail.
        problem = f"is {quoted(resized)}, not True, which alone is supported"
        raise CheckpointError(f"{path.name}: do_resize", problem, OTHER_MODEL)
    read_as(path, _Preprocessor, MAX_BYTES)
