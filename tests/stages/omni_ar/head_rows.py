"""Rows of a stage that a drafter with features drafts for, driven by hand, beside a reference that recomputes every entry.

Shape legend: N rows, T tokens of a row, K drafts, X width of hidden states, D width of features.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from omni_ar.attention import AttentionMetadata, KVCache, PrefillRow
from omni_ar.attention.torch_paged import TorchPagedAttention
from omni_ar.drafters import DraftChunks, DraftRows, ModelDrafter, RowPages
from omni_ar.kernels.step.state import RowFields
from omni_ar.model import Batch

BLOCK, BLOCKS = 4, 24
LENGTH = BLOCK * BLOCKS
_CLOSE = 1e-4


class HeadReference(Protocol):
    def features(self, states_TX: Tensor) -> Tensor: ...
    def hidden(self, ids_T: Tensor, features_TD: Tensor) -> Tensor: ...
    def likeliest(self, hidden_D: Tensor) -> int: ...


class HeadRows:
    """The text of each row is known beforehand, and so are the stage's hidden states of it. Those of rejected drafts are noise."""

    def __init__(
        self,
        drafter: ModelDrafter,
        reference: HeadReference,
        *,
        vocab: int,
        width: int,
        drafts: int,
        rows: int = 3,
        seed: int = 0,
    ) -> None:
        """width: X."""
        assert drafter.feature_shape is not None
        self._generator, self._pick = torch.Generator().manual_seed(seed), random.Random(seed)
        self._drafter, self._reference, self._drafts = drafter, reference, drafts
        self.ids_NT = torch.randint(vocab, (rows, LENGTH), generator=self._generator)
        self.states_NTX = self._noise(rows, LENGTH, width)
        shape = drafter.cache_shape

        def noise(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.full(size, torch.nan, dtype=dtype)  # what stands in pages before they are written

        sizes = (shape.num_layers, 1 + rows * BLOCKS, BLOCK, shape.num_kv_heads, shape.head_dim)
        self._cache = KVCache.allocate(noise, *sizes, torch.float32)
        self._table_NM = (1 + torch.randperm(rows * BLOCKS, generator=self._generator)).view(rows, BLOCKS)
        self._fields = RowFields(*(torch.zeros(rows, dtype=torch.int64) for _ in RowFields._fields))
        self._fields.active.fill_(1)
        self._fields.limit.fill_(LENGTH)
        self._text_NL = torch.full((rows, LENGTH + 1), -1, dtype=torch.int32)
        self._newest_N = torch.zeros(rows, dtype=torch.int64)
        self._features_NJD = self._noise(rows, 1 + drafts, drafter.feature_shape.width)
        self._first_N = torch.full((rows,), LENGTH)
        self.drafts_NK = torch.zeros(rows, drafts, dtype=torch.int64)
        self.proposed_N = torch.zeros(rows, dtype=torch.int64)
        self._seen: list[Tensor] = []
        model, propose = drafter._model, drafter._model.propose

        def proposes(hidden_RD: Tensor) -> Tensor:
            self._seen.append(hidden_RD)
            return propose(hidden_RD)

        model.propose = proposes  # type: ignore[method-assign]

    def newest(self, row: int) -> int:
        """Index of the newest token."""
        return int(self._newest_N[row])

    def prefill(
        self, chunks: Sequence[tuple[int, int, int]], decodes: Sequence[int] = (), *, captured: bool = False
    ) -> None:
        """A step with chunks: row, first index and length of each; and the newest token of decode rows. captured: whether the
        host does not have the chunks, and the batch ends in padding."""
        for row, first, _ in chunks:
            if not first:
                # A prompt is known as a whole when its row starts.
                prompt = self._prompt(row)
                self._text_NL[row, :prompt] = self.ids_NT[row, :prompt].int()
        if decodes:
            self._drafter.follow(self.rows(decodes))
        lengths_R = self._newest_N[list(decodes)] + 1
        slots = [self._slot(row, self.newest(row)) for row in decodes]
        states = [self.states_NTX[row, self.newest(row)] for row in decodes]
        rows_P4, prefills = [], []
        for row, first, length in chunks:
            rows_P4.append((row, len(slots), length, first))
            prefills.append(PrefillRow(len(slots), length, first, self._table_NM[row]))
            slots += [self._slot(row, index) for index in range(first, first + length)]
            states += [self.states_NTX[row, index] for index in range(first, first + length)]
        if captured:
            rows_P4.append((0, 0, 0, 0))
            slots += [0, 0]
            states += [self._noise(self.states_NTX.shape[2]) for _ in range(2)]
        tensor_P4 = torch.tensor(rows_P4)
        meta = AttentionMetadata(
            slots_T=torch.tensor(slots),
            num_decode=len(decodes),
            decode_block_table_RM=self._table_NM[list(decodes)],
            decode_lengths_R=lengths_R,
            decode_max_length=LENGTH,
            prefills=() if captured else tuple(prefills),
            prefill_rows_P4=tensor_P4,
            block_table_NM=self._table_NM,
        )
        backend = TorchPagedAttention()
        positions_PT = torch.zeros(1, len(slots), dtype=torch.int64)
        batch = Batch(positions_PT=positions_PT, attention=meta, cache=self._cache, backend=backend, prompt_start=0)
        ids_R = self.ids_NT[list(decodes), self._newest_N[list(decodes)]]
        features_TD = self._drafter.features(torch.stack(states))
        self._drafter.prefill(
            DraftChunks(
                batch=batch,
                rows_P4=tensor_P4,
                ids_R=ids_R,
                lengths_R=lengths_R,
                text_NL=self._text_NL,
                features_TH=features_TD,
            )
        )
        for place, row in enumerate(decodes):
            self._keep(row, self.newest(row), features_TD[place : place + 1], 1)
        for row, start, length, first in rows_P4[: len(chunks)]:
            end = start + length
            self._keep(row, first + length - 1, features_TD[end - 1 : end], int(first + length == self._prompt(row)))

    def step(self, rows: Sequence[int], accepted: Sequence[int]) -> list[list[int]]:
        """Drafts for rows, compared with the reference's; then the stage verifies, and accepts some of each row. Returns the
        drafts."""
        self._seen.clear()
        self._drafter.draft(self.rows(rows))
        made = [self.drafts_NK[row].tolist() for row in rows]
        for place, row in enumerate(rows):
            drafts, hidden = self.expected(row)
            assert made[place] == drafts
            assert int(self.proposed_N[row]) == self._drafts
            for seen_RD, hidden_D in zip(self._seen, hidden, strict=True):
                torch.testing.assert_close(seen_RD[place], hidden_D, atol=_CLOSE, rtol=_CLOSE)
        for row, count in zip(rows, accepted, strict=True):
            first = self.newest(row)
            states_TX = self.states_NTX[row, first : first + 1 + self._drafts].clone()
            states_TX[1 + count :] = self._noise(self.states_NTX.shape[2])
            self._keep(row, first, self._drafter.features(states_TX), 1 + count)
        return made

    def stop(self, row: int) -> None:
        """Ends a row, whose drafts and pages must then remain as they are."""
        self._fields.active[row] = 0

    def pages(self, row: int) -> Tensor:
        """Keys and values of each slot of a row, `[T, X]`, NaN as 0."""
        both = torch.stack((self._cache.key, self._cache.value))[:, :, self._table_NM[row]]
        return both.flatten(2, 3).movedim(2, 0).flatten(1).nan_to_num()

    def limit(self, row: int, tokens: int) -> None:
        """Lets a row have that many more tokens."""
        self._fields.limit[row] = self._fields.outputs[row] + tokens

    def expected(self, row: int) -> tuple[list[int], list[Tensor]]:
        """Drafts and the hidden state before each, from all entries of the row."""
        newest, reference = self.newest(row), self._reference
        ids = self.ids_NT[row, 1 : newest + 1].tolist()
        features_TD = reference.features(self.states_NTX[row, :newest])
        drafts: list[int] = []
        states: list[Tensor] = []
        for _ in range(self._drafts):
            states.append(reference.hidden(torch.tensor(ids + drafts), features_TD)[-1])
            drafts.append(reference.likeliest(states[-1]))
            features_TD = torch.cat((features_TD, states[-1][None]))
        return drafts, states

    def run(self, steps: int) -> None:
        """Prompts in chunks, beside decode rows, and steps that accept 0 to K drafts."""
        count = self.ids_NT.shape[0]
        self.prefill([(row, 0, min(3 + 2 * row, self._prompt(row))) for row in range(count - 1)])
        self.prefill([(row, 3 + 2 * row, self._prompt(row) - 3 - 2 * row) for row in range(count - 1)], captured=True)
        late = count - 1
        early = list(range(late))
        self.step(early, [self._pick.randint(0, self._drafts) for _ in early])
        self.prefill([(late, 0, 4)], early)
        self.prefill([(late, 4, self._prompt(late) - 4)], early, captured=True)
        for number in range(steps):
            rows = self._pick.sample(range(count), count if number % 3 else count - 1)
            assert max(self.newest(row) for row in rows) + 1 + 2 * self._drafts < LENGTH
            self.step(rows, [number % (self._drafts + 1) if place else self._drafts for place in range(len(rows))])

    def rows(self, rows: Sequence[int]) -> DraftRows:
        """As a drafter gets them."""
        pages = RowPages(
            cache=self._cache,
            backend=TorchPagedAttention(),
            columns=self._fields,
            block_table_NM=self._table_NM,
            blocks=BLOCKS,
            features_NJH=self._features_NJD,
            first_N=self._first_N,
        )
        return DraftRows(
            rows_R=torch.tensor(rows),
            text_NL=self._text_NL,
            length_N=self._newest_N,
            drafts_NK=self.drafts_NK,
            proposed_N=self.proposed_N,
            pages=pages,
        )

    def _prompt(self, row: int) -> int:
        """Tokens of a prompt."""
        return 6 + 3 * row

    def _slot(self, row: int, index: int) -> int:
        return int(self._table_NM[row, index // BLOCK]) * BLOCK + index % BLOCK

    def _keep(self, row: int, first: int, features_JD: Tensor, tokens: int) -> None:
        """The parts of a step that the stage keeps: features from the token `first` on, and its new tokens."""
        self._features_NJD[row] = self._noise(*self._features_NJD.shape[1:])
        self._features_NJD[row, : features_JD.shape[0]] = features_JD
        self._first_N[row] = first
        if tokens:
            self._newest_N[row] = first + tokens
            self._text_NL[row, : first + tokens + 1] = self.ids_NT[row, : first + tokens + 1].int()
            self._text_NL[row, first + tokens + 1 :] = -1
            self._fields.outputs[row] = first + tokens + 1 - self._prompt(row)

    def _noise(self, *size: int) -> Tensor:
        return torch.randn(size, generator=self._generator)


def move_later_drafts(drafter: ModelDrafter) -> None:
    """Plants a fault: the second and later drafts of a head have the positions after theirs."""
    model, run = drafter._model, drafter._model.forward

    def forward(ids_T: torch.Tensor, features_TH: torch.Tensor | None, batch: Batch) -> torch.Tensor:
        late = int(ids_T.shape[0] <= 3)  # passes of one entry a row
        return run(ids_T, features_TH, replace(batch, positions_PT=batch.positions_PT + late))

    model.forward = forward  # type: ignore[method-assign]
