"""The inputs of a drafter's model: entries of rows' texts within their pages, and padding that reads and writes no page."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from omni_ar.drafters import DraftChunks, DraftRows, ModelDrafter
from omni_ar.drafters.draft_model import ArDraftModel
from omni_ar.drafters.model import _Entries
from omni_ar.kernels.step.drafts import prepare_drafts
from omni_ar.model import Batch
from omni_ar.options import ArOptions
from omni_ar.run.phases import NO_FEATURES, draft_tokens
from omni_ar.run.plan import BatchShape
from tests.stages.omni_ar.small_drafts import MODEL, PROMPTS, answers, driver_of
from tests.support.ar_driver import ArDriver
from tests.support.trained_heads import trained

TRAFFIC: dict[str, dict[str, Any]] = {
    "chunks": {"max_num_batched_tokens": 6, "captured": True, "graph_chunk_sizes": (4, 6)},
    "few blocks": {"num_blocks": 24, "max_model_len": 52, "captured": True, "graph_batch_sizes": (2, 4)},
}


class Watched(ModelDrafter):
    """Checks the inputs of its model. seen: number of entries that are run, and of padding."""

    def __init__(self) -> None:
        super().__init__(ArDraftModel(MODEL, 11), 3)
        self.seen = Counter[str]()
        self.entries = 0
        self._forward = self._model.forward
        self._model.forward = self._checked  # type: ignore[method-assign]

    def _run(self, entries: _Entries, rows: DraftRows) -> Tensor:
        assert rows.pages is not None
        columns, newest_R1 = rows.pages.columns, rows.length_N[rows.rows_R][:, None]
        remaining_R1 = (columns.limit - columns.outputs)[rows.rows_R][:, None] - 1
        valid_RE, index_RE = entries.valid_RE, entries.index_RE
        follows = valid_RE.shape[1] > 1
        assert bool((index_RE <= newest_R1 + (0 if follows else remaining_R1))[valid_RE].all())
        assert not bool((valid_RE & (columns.active[rows.rows_R] == 0)[:, None]).any())
        self.seen += Counter(run=int(valid_RE.sum()), padding=int((~valid_RE).sum()))
        self.entries = valid_RE.shape[1]
        return super()._run(entries, rows)

    def _checked(self, ids_T: Tensor, features_TH: Tensor | None, batch: Batch) -> Tensor:
        meta, positions_T = batch.attention, batch.positions_PT[0]
        count = meta.num_decode
        assert features_TH is None, "it reads no hidden states of the stage"
        assert 0 <= int(ids_T.min()) <= int(ids_T.max()) < 11
        assert 0 <= int(positions_T.min()) <= int(positions_T.max()) < 160
        if count == ids_T.shape[0]:
            assert meta.decode_positions == self.entries, "the keys of a row are read once"
            nothing_T = meta.slots_T == 0
            expected_T = (positions_T + 1).where(~nothing_T, 0)
            assert torch.equal(meta.decode_lengths_R, expected_T)
            assert int(expected_T.max()) <= meta.decode_max_length
            assert not ids_T[nothing_T].any()
            assert not positions_T[nothing_T].any()
        return self._forward(ids_T, features_TH, batch)


@pytest.mark.parametrize("traffic", TRAFFIC)
def test_entries_are_of_the_text_or_padding(traffic: str):
    drafter = Watched()
    options = {"draft_tokens": 3, "adaptive_drafts": False, **TRAFFIC[traffic]}
    driver = driver_of("ngram", made=drafter, **options)
    answers(driver, PROMPTS)
    assert driver.counter("accepted_drafts") > 50
    assert min(drafter.seen["run"], drafter.seen["padding"]) > 20


def test_a_drafter_s_batch_has_nothing_of_the_stage_s_forward():
    """It would write its hidden states where consumers read those of the stage."""
    runner = driver_of("ngram", made=Watched(), draft_tokens=3).runner
    forward, shape, pages = runner._forward, BatchShape(0, 4, 1), runner.pages
    other: Any = object()
    batch = forward._batch(forward._metadata(shape, 1), pages, None)
    batch = replace(batch, embeddings=(other,), payload=other, layers=other, boundary=other, backend=other)
    assert forward._drafting is not None
    rows_P4 = torch.zeros(1, 4, dtype=torch.int64)
    (launch,) = forward._drafting.prefill_launches(batch, rows_P4, shape, pages.drafts)
    chunks = launch.buffers[1]
    assert isinstance(chunks, DraftChunks)
    given = chunks.batch
    assert (given.embeddings, given.payload, given.layers, given.boundary) == ((), None, None, None)
    assert given.cache is pages.drafts
    assert given.backend is not other


def test_a_step_without_drafts_drops_the_features_of_its_rows():
    head = trained("mtp")
    driver = ArDriver(head.setup.model, options=ArOptions(max_num_seqs=3, drafter="ngram"), drafter=head.drafter(3))
    runner, device = driver.runner, driver.device
    drafting, rows_R = runner._forward._drafting, torch.tensor([0, 2])
    assert drafting is not None
    assert drafting._features is not None
    with torch.inference_mode():
        for drafts, expected in ((3, [0, 7, 0, 7]), (0, [NO_FEATURES, 7, NO_FEATURES, 7])):
            drafting._features.first_N.fill_(7)
            steps_XR = torch.zeros(0, 2, dtype=torch.int64)
            inputs, launches = runner._forward.decodes(rows_R, steps_XR, 1, runner.pages, drafts)
            assert [launch.phase for launch in inputs[:-1]] == [*([draft_tokens] if drafts else []), prepare_drafts]
            device.enqueue(runner.stream, launches[1:])
            batch = launches[0].buffers[2]
            assert isinstance(batch, Batch)
            assert batch.attention.decode_positions == 1 + drafts, "the keys of a row are read once"
            assert (batch.layers is not None) == (drafts > 0), "nor are hidden states stored that no draft is made of"
            assert drafting._features.first_N.tolist() == expected, drafts
