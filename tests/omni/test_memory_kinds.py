"""The largest steps of the stage kinds, which measure their memory."""

import pytest
import torch
from torch import Tensor

from omni.checkpoint import Checkpoint
from omni.device.cpu import CpuDevice
from omni.engine import measure_stages
from omni.engine.memory import Budget
from omni.engine.rows import divide_memory
from omni.errors import OmniError, StageError
from omni.pipeline import Stage
from omni.sampling import SamplingParams
from omni.stage import MOST_CPU_ROWS, InsufficientMemoryError, Open, StageContext, dry_run
from omni_encoder.kind import LoadedEncoder
from omni_encoder.model import EncoderModel, SampleItem
from omni_encoder.options import EncoderOptions
from omni_qwen3_omni.encoders import build_audio, build_vision
from omni_vocoder.kind import LoadedVocoder
from omni_vocoder.options import VocoderOptions
from tests.support.fake_graph import FakeWorker
from tests.support.tower import Tower, encode
from tests.support.wavemaker import WaveMaker, WaveState


def _context(checkpoint: Checkpoint, kind: str, options: EncoderOptions | VocoderOptions) -> StageContext:
    stage = Stage(name="it", kind=kind, model="none:none", options=options)
    return StageContext(
        stage=stage, options=options, checkpoint=checkpoint, device=CpuDevice(), dtype=torch.float32, load_format="auto"
    )


class SmallItems(Tower):
    """Items have at most `longest` embeddings."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.longest = longest

    def largest_item(self, length: int) -> SampleItem:
        return super().largest_item(min(length, self.longest))


@pytest.mark.parametrize(
    ("longest", "batch"), [(1000, [100]), (40, [40, 40, 20]), (10, [10, 10, 10, 10]), (33, [33, 33, 33, 1])]
)
def test_an_encoder_is_measured_on_one_batch_as_full_as_its_options_allow(
    checkpoint: Checkpoint, longest: int, batch: list[int]
) -> None:
    model = SmallItems(longest)
    options = EncoderOptions(max_batch_items=4, max_batch_length=100, cache_bytes=12345, held_bytes=100_000)
    loaded = LoadedEncoder(_context(checkpoint, "encoder", options), model)
    assert loaded.footprint.fixed == 112_345
    peak = loaded.measure()
    assert model.segments == [tuple(batch)]
    # Of each embedding: running sum, doubled feature and the feature, in float32, and its owner, in int64.
    assert peak >= sum(batch) * (3 * 4 + 8)
    worker = loaded.start(0)
    assert worker._cache.bytes_used == 0
    assert not any(worker.usage().values())
    assert not any(worker.counters().values())


def test_a_vocoder_is_measured_on_its_chunks_with_all_rows(checkpoint: Checkpoint) -> None:
    model = WaveMaker()
    options = VocoderOptions(max_num_seqs=5, first_chunk_frames=3, chunk_frames=7)
    loaded = LoadedVocoder(_context(checkpoint, "vocoder", options), model)
    assert loaded.measure() > 0
    assert model.batches == [(5, 3, True), (5, 7, False)]
    worker = loaded.start(0)
    assert not any(worker.usage().values())
    assert not any(worker.counters().values())


class Crowded(WaveMaker):
    """The device has no memory for chunks of more than eight rows."""

    def decode(self, codes_BNG: Tensor, state: WaveState, rows_B: Tensor, first: bool) -> Tensor:
        if len(rows_B) > 8:
            raise torch.OutOfMemoryError("out of memory")
        return super().decode(codes_BNG, state, rows_B, first)


def test_chunks_that_run_out_of_memory_are_tried_with_fewer_rows(checkpoint: Checkpoint) -> None:
    loaded = LoadedVocoder(_context(checkpoint, "vocoder", VocoderOptions()), Crowded())
    division = divide_memory(
        {"it": loaded}, CpuDevice(), Budget(10**9, "engine.memory_bytes"), measure_stages, MOST_CPU_ROWS
    )
    assert (loaded.rows, division.memory["it"].rows) == (8, 8)
    chosen = LoadedVocoder(_context(checkpoint, "vocoder", VocoderOptions(max_num_seqs=9)), Crowded())
    with pytest.raises(
        InsufficientMemoryError,
        match=r"the largest batches of stage 'it'; lower it\.max_num_seqs",
    ):
        chosen.measure()


@pytest.mark.parametrize("length", [1, 2, 12, 13, 14, 100, 1000])
def test_the_largest_clip_has_the_length_asked_for(checkpoint: Checkpoint, length: int) -> None:
    _check_item(build_audio(_context(checkpoint, "encoder", EncoderOptions())), length, expected=length)


@pytest.mark.parametrize(("length", "expected"), [(1, 1), (2, 2), (7, 6), (64, 64), (70, 64), (16384, 64)])
def test_the_largest_picture_is_as_large_as_the_processor_leaves_it(
    checkpoint: Checkpoint, length: int, expected: int
) -> None:
    """The tiny processor shrinks pictures to 64 embeddings."""
    _check_item(build_vision(_context(checkpoint, "encoder", EncoderOptions())), length, expected)


def _check_item(model: EncoderModel, length: int, expected: int) -> None:
    sample = model.largest_item(length)
    (outputs,) = encode(model, [sample.features])
    assert sample.length == outputs["embeddings"].shape[0] == expected


def test_a_request_that_fails_or_never_ends_ends_the_measuring() -> None:
    opened = [Open("a", SamplingParams(), frozenset())]
    silent = FakeWorker()
    with pytest.raises(StageError, match=r"'it' failed while measuring its memory: .* do not end"):
        dry_run("it", silent, CpuDevice(), opened)
    failing, error = FakeWorker(), OmniError("broken")
    failing.fail("a", error)
    with pytest.raises(OmniError, match="broken"):
        dry_run("it", failing, CpuDevice(), opened)
