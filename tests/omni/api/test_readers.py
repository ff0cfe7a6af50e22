"""One stream read by several threads or tasks: each output goes to one of them, in order, and all of them end."""

import asyncio
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from omni import AsyncOmni, Omni, Output
from omni.api import AsyncOutputStream, OutputStream
from omni.errors import StageError
from tests.support.echo_family import BREAK, GATES, eventually
from tests.support.echo_omni import ENDLESS, coroutine, opened

pytestmark = pytest.mark.thorough

SEEDS = range(20)


class Readers:
    """Threads that read one stream. outputs: of each thread. errors: those raised."""

    def __init__(self, stream: OutputStream, count: int, upon: Callable[[int], object] = lambda _: None) -> None:
        self.outputs: list[list[Output]] = [[] for _ in range(count)]
        self.errors: list[BaseException] = []
        self._stream = stream
        self._upon = upon
        self._threads = [threading.Thread(target=self._read, args=(index,), daemon=True) for index in range(count)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        for thread in self._threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in self._threads), "a reader waits for ever"

    def _read(self, index: int) -> None:
        try:
            for output in self._stream:
                self.outputs[index].append(output)
                self._upon(sum(map(len, self.outputs)))
        except BaseException as error:
            self.errors.append(error)


@pytest.mark.parametrize("count", [2, 5])
def test_threads_share_the_outputs_and_all_end(omni: Omni, count: int) -> None:
    texts = ["hello world" * 3, "other", "", "third"]
    for _ in SEEDS:
        readers = Readers(omni.generate(texts), count)
        readers.end()
        outputs = [output for each in readers.outputs for output in each]
        assert sum(output.finished for output in outputs) == len(texts)
        expected = sum(sorted(map(ord, "".join(texts))))
        assert sum(ord(letter) for output in outputs for letter in output.text) == expected
        assert not readers.errors
        for each in readers.outputs:
            # One reader's outputs of one request are in order: a subsequence of its text.
            for index, text in enumerate(texts):
                got, rest = "".join(output.text for output in each if output.index == index), iter(text)
                assert all(letter in rest for letter in got)


def test_a_failure_is_raised_in_one_thread_and_all_end(omni: Omni) -> None:
    for _ in SEEDS:
        readers = Readers(omni.generate(f"hello{BREAK}"), 4)
        readers.end()
        assert [type(error) for error in readers.errors] == [StageError]
        assert eventually(lambda: omni.idle)


def test_a_failure_of_several_answers_is_raised_once(omni: Omni) -> None:
    for _ in SEEDS:
        readers = Readers(omni.generate("crash", n=5), 3)
        readers.end()
        assert [type(error) for error in readers.errors] == [StageError]


def test_a_close_from_elsewhere_ends_all_threads(omni: Omni) -> None:
    for seed in SEEDS:
        stream = omni.generate(["abc", "def"], sampling=ENDLESS)
        readers = Readers(stream, 3)
        threading.Event().wait(random.Random(seed).random() / 200)
        stream.close()
        readers.end()
        assert not readers.errors, "who is closed has an end, not an error"
        assert eventually(lambda: omni.idle)


def test_a_close_ends_readers_that_wait_for_the_first_output(omni: Omni) -> None:
    GATES["first"].clear()
    stream = omni.generate("wait first")
    readers = Readers(stream, 4)
    stream.close()
    readers.end()
    GATES["first"].set()
    assert not readers.errors
    assert list(stream) == []


def test_one_of_the_readers_closes(omni: Omni) -> None:
    def close_at(stream: OutputStream, most: int) -> Callable[[int], object]:
        return lambda total: stream.close() if total >= most else None

    for seed in SEEDS:
        stream = omni.generate("abc", sampling=ENDLESS)
        readers = Readers(stream, 3, close_at(stream, 1 + seed % 7))
        readers.end()
        assert not readers.errors


def test_a_model_that_is_closed_ends_all_threads(model: Path) -> None:
    omni = opened(model)
    readers = Readers(omni.generate("abc", sampling=ENDLESS), 3)
    omni.close()
    readers.end()
    assert [type(error) for error in readers.errors] == [StageError]


async def read(stream: AsyncOutputStream, got: list[Output]) -> None:
    async for output in stream:
        got.append(output)


@pytest.mark.parametrize("count", [2, 5])
@coroutine
async def test_tasks_share_the_outputs_and_all_end(omni: AsyncOmni, count: int) -> None:
    for _ in SEEDS:
        got: list[Output] = []
        stream = omni.generate(["hello world", "other"])
        await asyncio.gather(*(read(stream, got) for _ in range(count)))
        assert sum(output.finished for output in got) == 2
        texts = ["".join(output.text for output in got if output.index == index) for index in (0, 1)]
        assert texts == ["hello world", "other"], "tasks of one loop get them in order"


@coroutine
async def test_a_failure_is_raised_in_one_task_and_all_end(omni: AsyncOmni) -> None:
    for _ in SEEDS:
        stream = omni.generate(f"hello{BREAK}")
        ends = await asyncio.gather(*(read(stream, []) for _ in range(4)), return_exceptions=True)
        assert sorted(type(end).__name__ for end in ends) == ["NoneType"] * 3 + ["StageError"]


@pytest.mark.parametrize("how", ["close", "cancel"])
@coroutine
async def test_a_close_or_a_cancelled_task_ends_all_tasks(omni: AsyncOmni, how: str) -> None:
    for seed in SEEDS:
        stream = omni.generate(["abc", "def"], sampling=ENDLESS)
        tasks = [asyncio.create_task(read(stream, [])) for _ in range(4)]
        for _ in range(1 + seed % 9):
            await asyncio.sleep(0)
        if how == "close":
            await stream.aclose()
        else:
            tasks[seed % 4].cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        cancelled = [index for index, end in enumerate(ends) if isinstance(end, asyncio.CancelledError)]
        assert cancelled == ([] if how == "close" else [seed % 4])
        assert all(end is None for index, end in enumerate(ends) if index not in cancelled)


@coroutine
async def test_tasks_that_wait_for_the_first_output_end_with_the_stream(omni: AsyncOmni) -> None:
    GATES["tasks"].clear()
    stream = omni.generate("wait tasks")
    tasks = [asyncio.create_task(read(stream, [])) for _ in range(3)]
    await asyncio.sleep(0.01)
    await stream.aclose()
    assert await asyncio.gather(*tasks) == [None] * 3
    GATES["tasks"].set()
