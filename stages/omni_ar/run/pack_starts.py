"""Packs the rows that start with a step: their state, block tables, sampling parameters and drafts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omni.device import PackedSpan, Upload
from omni.errors import ReturnedError, type_of
from omni.stage import method_name
from omni_ar.drafters import Drafter
from omni_ar.kernels.step.draft_state import DraftFields
from omni_ar.kernels.step.state import RowFields
from omni_ar.model import ArShape
from omni_ar.processors import NamedProcessor
from omni_ar.run.limits import Limits
from omni_ar.run.request import ArRequest
from omni_ar.sampling.pack import PackedSampling, StartingRow, pack_sampling

_NO_IDS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class PackedDrafts:
    """fields: `DraftState.fields` of starting rows. text: `[n, length]`, their tokens, then -1."""

    fields: PackedSpan
    text: PackedSpan


@dataclass(frozen=True, slots=True)
class PackedStarts:
    """rows: indexes of the rows. fields: their `RowState.fields`. table: their blocks. drafts: None without a drafter."""

    rows: PackedSpan
    fields: PackedSpan
    table: PackedSpan
    sampling: PackedSampling
    drafts: PackedDrafts | None = None


def pack_starts(
    upload: Upload,
    new: Sequence[ArRequest],
    shape: ArShape,
    processors: Sequence[NamedProcessor],
    limits: Limits,
    drafter: Drafter | None,
    draft_rate: int,
) -> PackedStarts:
    """drafter: None for a stage without one. draft_rate: as for `pack_step`."""
    return PackedStarts(
        rows=upload.add(np.array([request.row_index for request in new], np.int64)),
        fields=upload.add(np.array([_fields(request) for request in new], np.int64)),
        table=upload.add(np.stack([request.held_table.ids for request in new])),
        sampling=pack_sampling(upload, [_starting(request, shape) for request in new], shape.vocab_size, processors),
        drafts=_pack_drafts(upload, new, limits, drafter, draft_rate) if drafter is not None else None,
    )


def _pack_drafts(
    upload: Upload, new: Sequence[ArRequest], limits: Limits, drafter: Drafter, draft_rate: int
) -> PackedDrafts:
    texts = [_text(request, drafter)[: limits.max_model_len] for request in new]
    padded = np.full((len(texts), max(map(len, texts))), -1, np.int64)
    for row, text in zip(padded, texts, strict=True):
        row[: len(text)] = text
    start = DraftFields(cap=0, rate=draft_rate, proposed=0, offered=0, found=1)
    fields = np.array([start._replace(cap=_most_drafts(request, limits)) for request in new], np.int64)
    return PackedDrafts(fields=upload.add(fields), text=upload.add(padded))


def _text(request: ArRequest, drafter: Drafter) -> NDArray[np.int64]:
    """Prompt and output of a request, then the text that may follow."""
    assert request.prompt is not None
    predicted: object = drafter.predicted_tokens(request.for_drafter, request.outputs) if not request.undrafted else ()
    try:
        ids = np.array([*request.outputs, *predicted], np.int64)  # type: ignore[misc]
    except (TypeError, ValueError, OverflowError) as error:
        code = drafter.predicted_tokens
        name = method_name(code, "predicted_tokens")
        raise ReturnedError(
            f"{name} gave {type_of(predicted)}, no token ids ({error}): return a list of int", code
        ) from error
    return np.concatenate([request.prompt.columns[0], ids])


def _most_drafts(request: ArRequest, limits: Limits) -> int:
    """Maximum drafts that a step verifies for the request."""
    return 0 if request.undrafted else limits.drafts


def _fields(request: ArRequest) -> RowFields[int]:
    assert request.prompt is not None
    assert request.row is not None
    return RowFields(
        last=0,
        length=0,
        delta=request.prompt.next_position - request.prompt.length,
        outputs=len(request.outputs),
        limit=request.max_tokens,
        active=1,
        row=request.row.index,
        counted=0,
    )


def _starting(request: ArRequest, shape: ArShape) -> StartingRow:
    prompt = request.prompt
    assert prompt is not None
    # A prompt of several columns is not a text that bad words can match.
    history = prompt.columns[0] if len(shape.prompt_columns) == 1 else _NO_IDS
    return StartingRow(
        row=request.row_index,
        sampling=request.sampling,
        seen=prompt.penalized_ids,
        history=history,
        outputs=request.outputs,
        sample_index=request.sample_index,
        params=request.params,
    )
