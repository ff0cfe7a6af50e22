"""Sampling by itself, through everything that a stage does: parameters resolved, rows packed, uploaded and set up."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from omni.device import Uploader, open_device
from omni.sampling import GREEDY, LogitsEdit, SamplingParams
from omni_ar.kernels.step.reference import observe
from omni_ar.processors import NamedProcessor
from omni_ar.sampling import (
    SamplingState,
    StartingRow,
    edit_size,
    flags_of,
    merge_edits,
    merge_flags,
    pack_edits,
    pack_sampling,
    resolve_sampling,
    sample,
    start_sampling,
    start_size,
    view_edits,
    view_starts,
)


def resolved(vocab: int, **asked: Any) -> SamplingParams:
    """Parameters as a stage without defaults of its own resolves them. Without a seed it is 0."""
    return resolve_sampling(SamplingParams(**{"seed": 0, **asked}), GREEDY, "text", vocab)


def starting(row: int, sampling: SamplingParams, prompt: Sequence[int] = (), **others: Any) -> StartingRow:
    """prompt: what penalties count and what bad words look back on."""
    ids = np.array(prompt, np.int64)
    return StartingRow(row=row, sampling=sampling, seen=ids, history=ids, **others)


class SamplerBench:
    """The sampler of a stage of N rows."""

    def __init__(
        self, vocab: int, rows: int, processors: Sequence[NamedProcessor] = (), max_model_len: int = 256
    ) -> None:
        self.vocab = vocab
        self.processors = processors
        self.device = open_device("cpu")
        self.state = SamplingState.allocate(self.device.zeros, rows, vocab, {p.name: p.width for p in processors})
        self.sampling: dict[int, SamplingParams] = {}
        self._stream = self.device.stream("main")
        words = rows * start_size(vocab, max_model_len, processors) + edit_size(vocab, rows)
        self._uploader = Uploader(self.device, self._stream, words, 2)

    def start(self, rows: Sequence[StartingRow]) -> int:
        """Sets rows up. Returns how many words the upload took."""
        upload = self._uploader.begin()
        packed = pack_sampling(upload, rows, self.vocab, self.processors)
        self._uploader.launch(upload)
        start_sampling(self.state, view_starts(packed, self._uploader.view))
        self.sampling.update({row.row: row.sampling for row in rows})
        return upload.size

    def sample(
        self,
        logits_RV: Tensor,
        rows: Sequence[int],
        positions: Sequence[int],
        edits: Sequence[tuple[int, LogitsEdit]] = (),
    ) -> list[int]:
        """edits: of places in the batch."""
        on_device = None
        if edits:
            upload = self._uploader.begin()
            packed = pack_edits(upload, [(place, merge_edits([e], self.vocab)) for place, e in edits], self.vocab)
            self._uploader.launch(upload)
            on_device = view_edits(packed, self._uploader.view)
        flags = merge_flags(flags_of(self.sampling[row]) for row in rows)
        rows_R, position_R = torch.tensor(rows), torch.tensor(positions)
        ids: list[int] = sample(logits_RV, self.state, rows_R, position_R, flags, on_device, self.processors).tolist()
        return ids

    def observe(self, rows: Sequence[int], ids: Sequence[Sequence[int]], counts: Sequence[int]) -> None:
        """As after a step of these rows."""
        flags = merge_flags(flags_of(self.sampling[row]) for row in rows)
        observe(self.state, torch.tensor(rows), torch.tensor(ids), torch.tensor(counts), flags)
