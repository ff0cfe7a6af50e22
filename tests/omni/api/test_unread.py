"""Outputs that a program does not read: bounded, with an error after those that were made."""

import asyncio
import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from omni import AsyncOmni, Omni
from omni.api.request import Started, UnreadEvents, size_of
from omni.engine import RequestFailed, RequestFinished, StageFinished, StageOutput
from omni.errors import OverloadedError
from omni.payload import AudioChunk, CodecFrames, GeneratedTokens, LogprobsChunk
from tests.support.echo_family import echo_model, echo_plugins, eventually
from tests.support.echo_omni import ENDLESS, assert_nothing_held

MOST = {"engine.max_unread_bytes": 100_000}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return echo_model(tmp_path_factory.mktemp("unread"))


def test_an_unread_answer_ends_after_its_outputs(model: Path) -> None:
    async def main() -> None:
        async with AsyncOmni(model, device="cpu", plugins=echo_plugins(), overrides=MOST) as omni:
            outputs = omni.generate("hello", sampling=ENDLESS)
            assert await asyncio.to_thread(eventually, lambda: omni.idle)
            text = ""
            error = None
            try:
                async for output in outputs:
                    text += output.text
            except OverloadedError as raised:
                error = raised
            assert "engine.max_unread_bytes" in str(error)
            assert "more than 100,000 bytes" in str(error)
            assert text.startswith("hellohello")
            # A token and its samples are some 1,400 bytes.
            assert 40 < len(text) < 200
            assert (await omni.complete("abc")).text == "abc"

    asyncio.run(main())


def test_one_answer_of_a_list_ends_alone(model: Path) -> None:
    with Omni(model, device="cpu", plugins=echo_plugins(), overrides=MOST) as omni:
        outputs = omni.generate(["hello", "hello"], sampling=ENDLESS)
        assert eventually(lambda: omni.idle)
        errors = {output.index: output.error for output in outputs if output.finished}
        assert all(isinstance(error, OverloadedError) for error in errors.values())
        assert set(errors) == {0, 1}
        assert_nothing_held(omni)


def test_the_end_is_delivered_beyond_the_limit() -> None:
    got: list[object] = []
    unread = UnreadEvents(lambda at, event: got.append(event), 1000)
    cancelled: list[OverloadedError] = []
    unread.cancel = cancelled.append
    sound = StageOutput("audio", AudioChunk(samples=np.zeros(200, np.float32), sample_rate=8000))
    for _ in range(3):
        unread.deliver(0.0, sound)
    assert (got, len(cancelled)) == ([], 1)
    end = RequestFailed(cancelled[0])
    unread.deliver(0.0, end)
    assert got == [end]


def test_reading_lets_more_outputs_in() -> None:
    got: list[object] = []
    unread = UnreadEvents(lambda at, event: got.append(event), 2500)
    sound = StageOutput("audio", AudioChunk(samples=np.zeros(200, np.float32), sample_rate=8000))
    for _ in range(100):
        unread.deliver(0.0, sound)
        unread.took(sound)
    assert len(got) == 100


def test_sizes_are_those_of_the_arrays() -> None:
    scores = LogprobsChunk(
        first=0, ids=np.zeros((1, 3), np.int64), logprobs=np.zeros((1, 3), np.float32), ranks=np.ones(1, np.int64)
    )
    base = size_of(StageFinished("writer", "stop", {}, ()))
    sound = AudioChunk(samples=np.zeros(200, np.float32), sample_rate=8000)
    assert size_of(StageOutput("audio", sound)) == base + 800
    assert size_of(StageOutput("text", scores)) == base + 24 + 12 + 8
    assert size_of(StageOutput("text", GeneratedTokens(ids=(1, 2)))) == base + 80
    assert size_of(StageOutput("codes", CodecFrames(), {"codes": torch.zeros(4, 8, dtype=torch.int64)})) == base + 256
    assert size_of(RequestFinished()) == size_of(Started(0.0, 1, lambda held: "")) == base


def test_a_finished_answer_leaves_no_cycle(model: Path) -> None:
    with Omni(model, device="cpu", plugins=echo_plugins()) as omni:
        stream = omni.generate("abc")
        handle = weakref.ref(stream._call._handles[0])
        list(stream)
        assert eventually(lambda: omni.idle)
        gc.disable()
        try:
            del stream
            assert eventually(lambda: handle() is None, 5)
        finally:
            gc.enable()
