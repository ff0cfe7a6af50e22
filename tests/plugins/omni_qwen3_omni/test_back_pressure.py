"""One vocoder row for many speakers: who waits for it is paused at the talker, and everybody's answer stays what it was."""

from collections import Counter

import msgspec
import pytest

from omni.pipeline import Pipeline
from omni.stage import Feed
from omni_ar.run.request import ArRequest
from omni_ar.run.worker import ArWorker
from omni_vocoder.request import VocoderRequest
from omni_vocoder.worker import VocoderWorker
from tests.plugins.omni_qwen3_omni.parity_cases import MIXED
from tests.support import omni_engine
from tests.support.omni_engine import OmniEngine, assert_same
from tests.support.reference import reference_of, tiny_checkpoint
from tests.support.tap import with_tap
from tests.support.tiers import SLOW, few

SPEAKERS = [chat for chat in MIXED if "audio" in chat.modalities]
ONE_ROW = {"code2wav.max_num_seqs": 1, "code2wav.first_chunk_frames": 1, "code2wav.chunk_frames": 1}
FEW_BLOCKS = {"talker.num_blocks": 26, "talker.block_size": 4}


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> tuple[Counter[str], Counter[str]]:
    """How often the talker was told to pause each request, and the most frames of it that ever waited at the vocoder."""
    pauses, waited = Counter[str](), Counter[str]()
    pause, feed = ArWorker.pause, VocoderWorker.feed

    def watched_pause(worker: ArWorker, request: ArRequest) -> None:
        assert worker.name == "talker"
        pauses[request.id] += 1
        pause(worker, request)

    def watched_feed(worker: VocoderWorker, request: VocoderRequest, message: Feed) -> None:
        feed(worker, request, message)
        waited[request.id] = max(waited[request.id], len(request.arrivals))

    monkeypatch.setattr(ArWorker, "pause", watched_pause)
    monkeypatch.setattr(VocoderWorker, "feed", watched_feed)
    return pauses, waited


@pytest.mark.parametrize("settings", [ONE_ROW, ONE_ROW | FEW_BLOCKS], ids=["one row", "one row and few blocks"])
@pytest.mark.parametrize("credit", few(1, [4, 1], SLOW))
def test_who_waits_for_the_vocoder_is_paused_and_nobody_else(
    credit: int,
    settings: dict[str, object],
    watch: tuple[Counter[str], Counter[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def narrow(pipeline: Pipeline) -> Pipeline:
        edges = [msgspec.structs.replace(e, credit=credit) if e.producer == "talker" else e for e in pipeline.edges]
        return with_tap(msgspec.structs.replace(pipeline, edges=tuple(edges)))

    monkeypatch.setattr(omni_engine, "with_tap", narrow)
    folder = tiny_checkpoint(11, stop_gain=0.5, codec_stop_gain=0.5)
    pauses, waited = watch

    engine = OmniEngine(folder, settings)
    results = engine.run(SPEAKERS)

    for result, asked in zip(results, SPEAKERS, strict=True):
        assert_same(result, reference_of(folder).answer(asked))
    assert len(pauses) >= len(SPEAKERS) - 2, "who says nothing is never paused, and who has the row need not be"
    assert max(waited.values()) == credit
    if credit > 1:
        assert waited["1"] == 1, "the first has the vocoder's row"
        assert pauses["1"] == 0
    counters = engine.engine.counters()["talker"]
    if "talker.num_blocks" in settings:
        assert counters["preemptions"] > 0
        assert counters["spilled_rows"] > 0, "paused requests gave way, before the vocoder had their frames"
