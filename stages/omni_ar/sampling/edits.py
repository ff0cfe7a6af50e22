"""Host processors' edits of one step's logits: packed on the host, applied on the device. Sets of ids are int64 bitmasks: bit i of
element m is id 64 * m + i."""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device import PackedSpan, Upload
from omni.sampling import LogitsEdit
from omni_ar.sampling.penalties import MASKED

_BITS = 64


def bitmask_size(vocab: int) -> int:
    """Number of elements of a bitmask of ids below `vocab`."""
    return -(-vocab // _BITS)


def pack_bitmask(members_V: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The bitmask, int64 `[bitmask_size(V)]`, of a set with one bool per id."""
    mask = np.zeros(bitmask_size(members_V.size), "<i8")
    packed = np.packbits(members_V, bitorder="little")
    mask.view(np.uint8)[: packed.size] = packed
    return mask.astype(np.int64)


def unpack_bitmask(masks_nM: Tensor, vocab: int) -> Tensor:
    """Returns the sets as bool `[n, vocab]`, on the masks' device. The largest intermediate has one byte per id."""
    bytes_nB = masks_nM.view(torch.uint8)
    bit_8 = torch.arange(8, dtype=torch.uint8, device=masks_nM.device)
    return ((bytes_nB[..., None] >> bit_8) & 1).flatten(1)[:, :vocab].bool()


Part = TypeVar("Part")

MAX_EDITED_IDS = 1024
"""Maximum ids with a bias from a request's host processors for one token; ids that a bitmask excludes do not count."""


class EditParts(NamedTuple, Generic[Part]):
    """The edits of a step, int64, on host or device: g rows with a mask, p pairs of row and id. indices_g, pair_indices_p: batch
    index of the row. masks_gM: bitmasks of the possible ids. pair_ids_p: the id. pair_bias_p: bits of the float64 bias."""

    indices_g: Part
    masks_gM: Part
    pair_indices_p: Part
    pair_ids_p: Part
    pair_bias_p: Part

    def on_device(self, view: Callable[[Part], Tensor]) -> "StepEdits":
        """view: returns an uploaded array on the device (`Uploader.view`)."""
        return EditParts(*map(view, self))


PackedEdits = EditParts[PackedSpan]
StepEdits = EditParts[Tensor]


def edit_size(vocab: int, rows: int) -> int:
    """Maximum number of int64 in the uploaded edits of a step with `rows` edited rows."""
    return rows * (1 + bitmask_size(vocab) + 3 * MAX_EDITED_IDS)


def merge_edits(edits: Sequence[LogitsEdit], vocab: int) -> LogitsEdit:
    """Merges a request's edits for one token: the ids that all of them allow, and the sum of their biases. Raises ValueError for
    biases of more than MAX_EDITED_IDS ids. edits: have passed `check_edit`."""
    masks = [_fitted(edit.allowed, bitmask_size(vocab)) for edit in edits if edit.allowed is not None]
    allowed = np.bitwise_and.reduce(masks) if masks else None
    pairs = [(edit.ids, edit.bias) for edit in edits if edit.ids is not None and edit.bias is not None]
    if not pairs:
        return LogitsEdit(allowed)
    merged, index = np.unique(np.concatenate([ids for ids, _ in pairs]), return_inverse=True)
    if len(merged) > MAX_EDITED_IDS:
        raise ValueError(f"biases {len(merged)} ids, and at most {MAX_EDITED_IDS} may be; rule ids out by `allowed`")
    bias = np.zeros(len(merged), np.float32)
    np.add.at(bias, index, np.concatenate([each for _, each in pairs]))
    return LogitsEdit(allowed, merged, bias)


def _fitted(mask: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Resizes a mask: a tokenizer may have fewer ids than the model, or more."""
    fitted = np.zeros(size, np.int64)
    fitted[: len(mask)] = mask[:size]
    return fitted


def check_edit(edit: LogitsEdit, vocab: int) -> None:
    """Raises ValueError for a `LogitsEdit` whose arrays have another shape, dtype or range."""
    allowed, ids, bias = edit.allowed, edit.ids, edit.bias
    if allowed is not None and (allowed.dtype != np.int64 or allowed.ndim != 1):
        raise ValueError(f"allowed is {allowed.dtype} {list(allowed.shape)}, not int64 [{bitmask_size(vocab)}]")
    if ids is None and bias is None:
        return
    if ids is None or bias is None:
        raise ValueError("ids and bias go together")
    if ids.dtype != np.int64 or ids.ndim != 1:
        raise ValueError(f"ids are {ids.dtype} {list(ids.shape)}, not int64 [k]")
    if bias.dtype != np.float32 or bias.shape != ids.shape:
        raise ValueError(f"bias is {bias.dtype} {list(bias.shape)}, not float32 [{len(ids)}] as ids are")
    if ids.size and not 0 <= ids.min() <= ids.max() < vocab:
        raise ValueError(f"ids reach from {ids.min()} to {ids.max()}, and the vocabulary has {vocab}")
    if not (bias < np.inf).all():
        raise ValueError("bias must be finite, or -inf")


def pack_edits(upload: Upload, edits: Sequence[tuple[int, LogitsEdit]], vocab: int) -> PackedEdits:
    """Fills `upload`. edits: pairs of a batch index, each at most once, and an edit from `merge_edits`."""
    masks = [(index, edit.allowed) for index, edit in edits if edit.allowed is not None]
    pairs = [(index, edit.ids, edit.bias) for index, edit in edits if edit.ids is not None and edit.bias is not None]
    none_M, none_p = np.empty((0, bitmask_size(vocab)), np.int64), np.empty(0, np.int64)
    return EditParts(
        indices_g=upload.add(np.array([index for index, _ in masks], np.int64)),
        masks_gM=upload.add(np.concatenate([none_M, *(mask[None] for _, mask in masks)])),
        pair_indices_p=upload.add(np.concatenate([none_p, *(np.full(len(ids), index) for index, ids, _ in pairs)])),
        pair_ids_p=upload.add(np.concatenate([none_p, *(ids for _, ids, _ in pairs)])),
        pair_bias_p=upload.add_floats(np.concatenate([np.empty(0), *(bias for _, _, bias in pairs)])),
    )


def apply_edits(logits_RV: Tensor, edits: StepEdits) -> Tensor:
    """Adds the biases and masks the ids that the edits do not allow."""
    if edits.pair_indices_p.shape[0]:
        bias_p = edits.pair_bias_p.view(torch.float64).to(logits_RV.dtype)
        at_p = edits.pair_indices_p * logits_RV.shape[1] + edits.pair_ids_p
        logits_RV = logits_RV.flatten().index_add(0, at_p, bias_p).view_as(logits_RV)
    if edits.indices_g.shape[0]:
        allowed_gV = unpack_bitmask(edits.masks_gM, logits_RV.shape[1])
        edited_gV = logits_RV.index_select(0, edits.indices_g).masked_fill(~allowed_gV, MASKED)
        logits_RV = logits_RV.index_copy(0, edits.indices_g, edited_gV)
    return logits_RV
