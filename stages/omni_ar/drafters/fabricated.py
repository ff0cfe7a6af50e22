"""Drafts of a chosen acceptance rate, for tests and benchmarks. A request is run twice: the first time without drafts, and its
output is remembered; from then on, an equal request (prompt, sampling parameters with a seed or at temperature 0) gets drafts from
that output, each correct with the chosen probability. Forward, sampling and verification are those of any other drafter, so the
second run's tokens are those of the first for any drafts."""

import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from omni_ar.drafters.base import Drafter, DraftRequest, DraftRows, DraftSetup

_REMEMBERED = 4096
"""Requests whose outputs are remembered; the oldest are dropped."""


class FabricatedArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """rate: probability that a draft is right. seed: of the choice of wrong ones, at least 0."""

    rate: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ValueError("rate must be from 0 to 1")
        if self.seed < 0:
            raise ValueError("seed must be at least 0")


class FabricatedDrafter(Drafter):
    def __init__(self, args: Mapping[str, object], setup: DraftSetup) -> None:
        self._args = msgspec.convert(args, FabricatedArgs)
        self._setup = setup
        self._known: OrderedDict[object, NDArray[np.int64]] = OrderedDict()

    def draft(self, rows: DraftRows) -> None:
        text_NL, drafts = rows.text_NL, rows.drafts_NK.shape[1]
        index_K = torch.arange(1, 1 + drafts, device=rows.rows_R.device)
        at_RK = rows.length_N.index_select(0, rows.rows_R)[:, None] + index_K
        # No verified draft comes from the last column, which has no meaning: it would be too far after the text.
        drafts_RK = text_NL.index_select(0, rows.rows_R).gather(1, at_RK.clamp(max=text_NL.shape[1] - 1)).long()
        rows.drafts_NK.index_copy_(0, rows.rows_R, drafts_RK)
        rows.proposed_N.index_copy_(0, rows.rows_R, (drafts_RK >= 0).long().cumprod(1).sum(1))

    def predicted_tokens(self, request: DraftRequest, outputs: Sequence[int]) -> Sequence[int]:
        known = self._known.get(_key(request))
        if known is None or known[: len(outputs)].tolist() != list(outputs):
            return ()
        # A draft is right or wrong by its position in the output, in any step, and independently of other requests.
        prompt = zlib.crc32(request.ids_T.tobytes())
        random = np.random.default_rng((self._args.seed, prompt, request.sample_index))
        is_wrong = random.random(known.size) >= self._args.rate
        drafts: list[int] = np.where(is_wrong, (known + 1) % self._setup.vocab_size, known)[len(outputs) :].tolist()
        return drafts

    def finished(self, request: DraftRequest, outputs: Sequence[int]) -> None:
        if len(self._known) >= _REMEMBERED:
            self._known.popitem(last=False)
        self._known[_key(request)] = np.array(outputs, np.int64)


def _key(request: DraftRequest) -> object:
    sampling = request.sampling
    if sampling.temperature == 0:
        sampling = msgspec.structs.replace(sampling, seed=None)  # drawn for each request, and without effect
    return request.ids_T.tobytes(), request.sample_index, msgspec.msgpack.encode(sampling)
