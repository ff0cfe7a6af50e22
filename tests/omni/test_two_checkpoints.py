"""Two models in one process, each with the results of a process of its own."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from omni import Omni, Result, SamplingParams, StageError
from tests.support.echo_family import eventually
from tests.support.reference import tiny_checkpoint
from tests.support.tiers import SLOW, few
from tests.support.tiny_omni import (
    SHAPE,
    assert_freed,
    assert_like,
    engine_threads,
    lengths,
    picture,
    sound,
    tiny_plugins,
    user,
)
from tests.support.tiny_text import write_chat_model

pytestmark = pytest.mark.thorough

QUESTIONS: list[Any] = [
    "who is it",
    user(picture(2), "what is it"),
    user(sound(3), "what was said"),
    user("the blue voice", picture(4), sound(5)),
]
TEXTS: list[Any] = ["who is it", "a red circle and", "one two", "go on"]
PAIRS = [("speaker", "other speaker"), ("speaker", "writer")]


class Model:
    """A checkpoint, its requests, and their results when it is the only one in the process."""

    def __init__(self, folder: Path, *, speaks: bool) -> None:
        self.folder = folder
        self._asked: list[tuple[Any, dict[str, SamplingParams]]]
        if speaks:
            self._asked = [(chat, lengths(10, 12, seed, temperature=0.8)) for seed, chat in enumerate(QUESTIONS)]
        else:
            sampling = [SamplingParams(max_tokens=20, seed=seed, temperature=0.8) for seed in range(len(TEXTS))]
            self._asked = [(text, {"text": params}) for text, params in zip(TEXTS, sampling, strict=True)]
        with self.opened() as omni:
            self.alone = [self.ask(omni, index) for index in range(len(self._asked))]
        assert len({result.text for result in self.alone}) == len(self._asked)

    @contextmanager
    def opened(self, **settings: Any) -> Iterator[Omni]:
        with Omni(self.folder, device="cpu", plugins=tiny_plugins(), **settings) as omni:
            yield omni

    def ask(self, omni: Omni, index: int) -> Result:
        chat, sampling = self._asked[index % len(self._asked)]
        result: Result = omni.generate(chat, sampling=sampling, stream=False)
        return result

    def check(self, omni: Omni, index: int) -> None:
        """The answer is the one that it gives alone."""
        result, expected = self.ask(omni, index), self.alone[index % len(self.alone)]
        assert (result.text, result.usage) == (expected.text, expected.usage)
        assert (result.audio is None) == (expected.audio is None)
        if expected.audio is not None:
            assert_like(result.audio, expected.audio)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    found = {
        "speaker": Model(tiny_checkpoint(3, **SHAPE), speaks=True),
        "other speaker": Model(tiny_checkpoint(4, **SHAPE), speaks=True),
        "writer": Model(Path(write_chat_model(tmp_path_factory.mktemp("writer"))), speaks=False),
    }
    texts = {result.text for model in found.values() for result in model.alone}
    assert len(texts) == len(QUESTIONS) * 2 + len(TEXTS), "two of them answer alike: a mix-up would not be seen"
    return found


@pytest.mark.parametrize("names", few(1, map(list, PAIRS[::-1]), SLOW), ids=" and ".join)
def test_requests_from_many_threads_equal_each_model_alone(models: dict[str, Model], names: Sequence[str]) -> None:
    pair, before = [models[name] for name in names], engine_threads()
    with ExitStack() as stack, ThreadPoolExecutor(8) as threads:
        opened = [(model, stack.enter_context(model.opened())) for model in pair]
        assert engine_threads() == before + 2
        checks = [threads.submit(model.check, omni, index) for index in range(8) for model, omni in opened]
        for check in checks:
            check.result()
        for _, omni in opened:
            assert_freed(omni)
    assert engine_threads() == before


@pytest.mark.parametrize(
    "names",
    [PAIRS[0], *(pytest.param(pair, marks=SLOW) for pair in (*PAIRS[1:], ("writer", "speaker")))],
    ids=" stays, gone: ".join,
)
def test_closing_one_leaves_the_other_serving(models: dict[str, Model], names: Sequence[str]) -> None:
    stays, goes = (models[name] for name in names)
    before = engine_threads()
    with stays.opened() as omni, ThreadPoolExecutor(3) as threads:
        with goes.opened() as other:
            stream = other.generate("go on", sampling=SamplingParams(max_tokens=200))
            next(stream)
            under_way = [threads.submit(stays.check, omni, index) for index in range(3)]
            assert eventually(lambda: not omni.idle)
        with pytest.raises(StageError, match="closed"):
            list(stream)
        with pytest.raises(StageError, match="closed"):
            goes.ask(other, 0)
        for check in under_way:
            check.result()
        assert engine_threads() == before + 1
        stays.check(omni, 3)
        assert_freed(omni)


@pytest.mark.parametrize("names", few(1, map(list, PAIRS[::-1]), SLOW), ids=" and ".join)
def test_loading_one_disturbs_no_answer_of_the_other(models: dict[str, Model], names: Sequence[str]) -> None:
    """The newcomer has another dtype, which transformers makes the process's default while it builds a module."""
    serves, comes = (models[name] for name in names)
    loaded = threading.Event()
    with serves.opened() as omni, ThreadPoolExecutor(2) as threads:

        def keep_asking(first: int) -> int:
            index = first
            while not loaded.is_set() or index == first:
                serves.check(omni, index)
                index += 1
            return index

        asking = [threads.submit(keep_asking, first) for first in range(2)]
        try:
            with comes.opened(dtype="bfloat16") as other:
                loaded.set()
                assert comes.ask(other, 0).error is None
        finally:
            loaded.set()
        assert all(asked.result() > first for first, asked in enumerate(asking))


@pytest.mark.parametrize("name", ["speaker", "writer"])
def test_answers_do_not_depend_on_the_process_s_default_dtype(models: dict[str, Model], name: str) -> None:
    model = models[name]
    with model.opened() as omni:
        torch.set_default_dtype(torch.bfloat16)
        try:
            for index in range(len(model.alone)):
                model.check(omni, index)
        finally:
            torch.set_default_dtype(torch.float32)
