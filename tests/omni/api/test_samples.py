"""`n` answers to one request, on a family that echoes."""

from pathlib import Path
from typing import Any

import pytest

from omni import AsyncOmni, InputError, Omni, SamplingParams
from omni.errors import StageError
from tests.support import echo_family
from tests.support.echo_family import BREAK_OTHERS, OPENED, SAMPLE, eventually
from tests.support.echo_omni import coroutine, opened


@pytest.fixture(autouse=True)
def nothing_asked() -> None:
    OPENED.clear()


def test_alternatives_are_the_other_answers_of_n(omni: Omni):
    result = omni.generate(f"no {SAMPLE}.", n=3, stream=False)
    assert [result.text, *(other.text for other in result.alternatives)] == ["no 0.", "no 1.", "no 2."]
    assert all(one.audio is not None and one.error is None for one in (result, *result.alternatives))
    assert omni.generate("one", stream=False).alternatives == ()


def test_a_list_gives_each_request_its_answers(omni: Omni):
    results = omni.generate([f"a{SAMPLE}", f"b{SAMPLE}"], n=2, stream=False)
    assert [(one.text, *(other.text for other in one.alternatives)) for one in results] == [("a0", "a1"), ("b0", "b1")]


def test_streamed_answers_have_their_numbers(omni: Omni):
    texts: dict[tuple[int, int], str] = {}
    ended = []
    for output in omni.generate([f"a{SAMPLE}", f"b{SAMPLE}"], n=2, modalities=("text",)):
        place = (output.index, output.sample)
        texts[place] = texts.get(place, "") + output.text
        if output.finished:
            ended.append(place)
    assert texts == {(0, 0): "a0", (0, 1): "a1", (1, 0): "b0", (1, 1): "b1"}
    assert sorted(ended) == sorted(texts)


def test_samples_differ_by_their_index_only(model: Path):
    with opened(model, **{"engine.process": "thread"}) as omni:
        check_opened(omni)


def check_opened(omni: Omni) -> None:
    """The requests of the engine, which is in this process."""
    omni.generate("same", n=3, modalities=("text",), stream=False)
    assert [one.sample_index for one in OPENED] == [0, 1, 2]
    assert len({one.sampling for one in OPENED}) == 1
    assert OPENED[0].sampling.seed is not None
    first = OPENED[0].sampling.seed
    OPENED.clear()
    omni.generate("same", n=2, stream=False)
    assert OPENED[0].sampling.seed not in (first, None)
    OPENED.clear()
    omni.generate("same", n=2, sampling=SamplingParams(seed=7), stream=False)
    assert [one.sampling.seed for one in OPENED] == [7, 7]
    OPENED.clear()
    omni.generate("same", stream=False)
    assert [(one.sampling.seed, one.sample_index) for one in OPENED] == [(None, 0)]


def test_a_request_is_prepared_once(omni: Omni, monkeypatch: pytest.MonkeyPatch):
    prepared = []
    prepare = echo_family.EchoFrontend.prepare

    def counted(self: echo_family.EchoFrontend, chat: Any) -> Any:
        prepared.append(chat)
        return prepare(self, chat)

    monkeypatch.setattr(echo_family.EchoFrontend, "prepare", counted)
    omni.generate("hello", n=5, stream=False)
    assert len(prepared) == 1


def test_one_failing_sample_fails_alone(omni: Omni):
    result = omni.generate(f"ab{BREAK_OTHERS}c", n=3, stream=False)
    assert (result.text, result.error) == (f"ab{BREAK_OTHERS}c", None)
    assert [type(other.error) for other in result.alternatives] == [StageError, StageError]
    outputs = list(omni.generate(f"ab{BREAK_OTHERS}c", n=2))
    assert [(out.sample, type(out.error)) for out in outputs if out.error is not None] == [(1, StageError)]


def test_a_request_that_cannot_be_prepared_is_raised(omni: Omni):
    with pytest.raises(InputError, match="messages"):
        omni.generate("", n=3, stream=False)
    with pytest.raises(InputError, match="messages"):
        list(omni.generate("", n=3))
    errors = [one.error for one in omni.generate(["", "x"], n=2, stream=False)]
    assert [type(error) for error in errors] == [InputError, type(None)]


def test_closing_gives_up_every_sample(omni: Omni):
    outputs = omni.generate("hello", n=4, sampling=SamplingParams(max_tokens=10**9))
    started = {next(outputs).sample}
    while len(started) < 4:
        started.add(next(outputs).sample)
    outputs.close()
    assert eventually(lambda: omni.idle)


@coroutine
async def test_coroutines_return_all_samples(omni: AsyncOmni) -> None:
    result = await omni.complete(f"x{SAMPLE}", n=2)
    assert [result.text, result.alternatives[0].text] == ["x0", "x1"]
    assert {out.sample async for out in omni.generate("hello", n=3)} == {0, 1, 2}
