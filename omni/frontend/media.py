"""Sound and pictures as inputs of encoders, and their positions in a prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.errors import InputError, counted
from omni.frontend.base import AudioPart, ImagePart
from omni.frontend.mrope import Grid
from omni.media import content_hash

_MAX_PROPORTION = 200
"""Largest ratio of sides that image processors accept."""

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Media:
    """tensors: features for the encoder. length: tokens in the prompt. key: equal if and only if the content is. batch_key: only
    media of equal ones are encoded together. grid: of a picture. field: its path in the request, for errors."""

    tensors: Mapping[str, Tensor]
    length: int
    key: str
    batch_key: int = 0
    grid: Grid = (0, 0, 0)
    field: str = ""


@dataclass(frozen=True, slots=True)
class EncodedChat:
    """A chat in tokens, with its media by kind, `"audio"` and `"image"`, in order. ids_T: int64. positions_3T: int64, rotary.
    next_position: of the token after them. positions: of the tokens of each medium in `ids_T`, by kind."""

    ids_T: Ids
    positions_3T: Ids
    next_position: int
    media: Mapping[str, Sequence[Media]]
    positions: Mapping[str, Sequence[Ids]]

    def prefix_key(self) -> str:
        """Key of everything that hidden states at the media depend on: the prompt up to the last piece."""
        end = max((int(each[-1]) + 1 for media in self.positions.values() for each in media), default=0)
        prefix = (np.ascontiguousarray(self.ids_T[:end]), np.ascontiguousarray(self.positions_3T[:, :end]))
        return "-".join([*map(content_hash, prefix), *(each.key for pieces in self.media.values() for each in pieces)])


def picture(processor: Any, part: ImagePart, merge: int) -> Media:
    """Processes a picture by an image processor of transformers: tensors `pixels` float32 `[N, P]`, of each patch, and `grid` int64
    `[3]`. merge: patches along height and width that become one token. Raises InputError for a picture too long and narrow."""
    width, height = part.image.size
    if max(width, height) > _MAX_PROPORTION * min(width, height):
        problem = f"is {width} x {height} pixels, more than {_MAX_PROPORTION} times as long as wide"
        raise InputError(part.field, problem, "crop it")
    made = processor(images=[part.image], return_tensors="pt")
    pixels_NP, grid_3 = made["pixel_values"].contiguous(), made["image_grid_thw"][0]
    time, down, across = grid_3.tolist()
    key = f"{content_hash(pixels_NP.numpy())}-{content_hash(grid_3.numpy())}"
    length = time * down * across // merge**2
    return Media({"pixels": pixels_NP, "grid": grid_3}, length, key, grid=(time, down, across), field=part.field)


def spectrum(extractor: Any, part: AudioPart) -> Tensor:
    """A clip's mel spectrogram float32 `[mel bins, frames]`, by a feature extractor of transformers that pads clips with minutes of
    silence: here only by the length of a Fourier transform. Raises InputError for a clip that is too short."""
    samples, hop = part.samples, extractor.hop_length
    if len(samples) <= 2 * hop:
        raise InputError(part.field, f"has {counted(len(samples), 'sample')}, too few for one frame", "give more")
    padded = np.pad(samples, (0, 2 * extractor.n_fft))
    made = extractor([padded], sampling_rate=extractor.sampling_rate, padding=False, truncation=False)
    mel = torch.as_tensor(np.asarray(made["input_features"][0]))
    return mel[:, : -(-len(samples) // hop)].contiguous()


def spectra(extractor: Any, parts: Sequence[AudioPart]) -> list[Tensor]:
    """Mel spectrograms of clips, float32 `[mel bins, frames]`, by a feature extractor of transformers, padded to the longest."""
    if not parts:
        return []
    made = extractor(
        [part.samples for part in parts],
        sampling_rate=extractor.sampling_rate,
        padding=True,
        truncation=False,
        return_attention_mask=True,
        return_tensors="pt",
    )
    mels = zip(made["input_features"], made["attention_mask"], strict=True)
    return [mel[:, mask.bool()].contiguous() for mel, mask in mels]


def expand(ids: Ids, media: Mapping[int, Sequence[Media]]) -> tuple[Ids, dict[int, list[Ids]]]:
    """Repeats each placeholder once for each token of its medium. media: by placeholder, in order. Returns the longer ids, and by
    placeholder the ascending positions of each piece."""
    counts = np.ones(len(ids), np.int64)
    for token, pieces in media.items():
        counts[ids == token] = [piece.length for piece in pieces]
    ids = np.repeat(ids, counts)
    positions: dict[int, list[Ids]] = {}
    for token, pieces in media.items():
        ends = np.cumsum([piece.length for piece in pieces])
        positions[token] = np.split(np.flatnonzero(ids == token), ends[:-1]) if pieces else []
    return ids, positions
