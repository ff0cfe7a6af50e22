"""Requests that wait between `generate` and the stages: their order, their number, and the memory that they may hold."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omni import Omni, Result, SamplingParams
from omni.api.request_queue import THREADS, PreparingThread
from omni.errors import OmniError, OverloadedError, StageError
from omni.frontend.base import Chat, ImagePart, Prepared, TextPart
from omni.payload import Payload
from tests.support.echo_family import EchoFrontend, eventually
from tests.support.echo_omni import ENDLESS, assert_nothing_held, opened
from tests.support.patience import PATIENCE_SECONDS

PICTURE = np.zeros((4, 5, 3), np.uint8)
PREPARED: list[str] = []
"""Texts of requests, in the order in which they were taken up."""
OPEN = threading.Event()
"""What requests with a picture wait for as they are prepared."""
STUCK = threading.Event()
"""What those wait for whose text is `"stuck"`."""


class Slow(EchoFrontend):
    def prepare(self, chat: Chat) -> Prepared:
        parts = [part for message in chat.messages for part in message.content]
        text = "".join(part.text for part in parts if isinstance(part, TextPart))
        PREPARED.append(text)
        if any(isinstance(part, ImagePart) for part in parts):
            assert (STUCK if text == "stuck" else OPEN).wait(PATIENCE_SECONDS)
        return super().prepare(chat)


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("tests.support.echo_family.EchoFrontend", Slow)
    PREPARED.clear()
    OPEN.clear()
    STUCK.clear()
    yield
    OPEN.set()
    STUCK.set()


def seen(text: str, picture: Any = PICTURE) -> list[dict[str, Any]]:
    parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": picture}]
    return [{"role": "user", "content": parts}]


def waiting(omni: Omni) -> int:
    return omni.usage()["frontend"]["requests"]


def test_an_urgent_text_waits_for_no_picture(model: Path) -> None:
    """Forty pictures are there first, and none of them gets on: the text is answered all the same, before any."""
    with opened(model) as omni:
        pictures = omni.generate([seen(f"picture {number}") for number in range(40)])
        assert eventually(lambda: len(PREPARED) == THREADS)
        assert omni.generate("urgent", priority=-1000, stream=False).text == "urgent"
        assert omni.generate("not even urgent", stream=False).text == "not even urgent"
        assert len(PREPARED) == THREADS + 2, "and no further picture was taken up"
        assert waiting(omni) == 40
        assert not omni.idle, "though the engine is"
        pictures.close()
        assert_nothing_held(omni)


def test_a_long_text_is_no_short_one(model: Path) -> None:
    with opened(model) as omni:
        blocker = omni.generate([seen(f"picture {number}") for number in range(THREADS)])
        assert eventually(lambda: len(PREPARED) == THREADS)
        long = omni.generate("x" * 100_000)
        assert omni.generate("short", stream=False).text == "short"
        assert "x" * 100_000 not in PREPARED, "it waits with the pictures"
        long.close()
        blocker.close()


class Mute(BaseException):
    """Cannot be written."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_error_without_text_is_reported(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(self: object, chat: Chat) -> Prepared:
        raise Mute

    with monkeypatch.context() as patch, opened(model) as omni:
        patch.setattr(Slow, "prepare", prepare)
        for _ in range(2 * THREADS + 2):
            with pytest.raises(StageError, match="Mute: without a message"):
                omni.generate("x", stream=False)
        patch.undo()
        assert omni.generate("x", stream=False).text == "x", "every thread is still there"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_survives_any_error_of_its_work() -> None:
    ended = threading.Event()
    works: list[object] = [SystemExit(), Mute(), ValueError()]

    def work(thread: PreparingThread, request: Any) -> None:
        if not works:
            ended.set()
            return
        raise works.pop()  # type: ignore[misc]

    thread = PreparingThread(0, work)
    thread.start()
    for _ in range(4):
        thread.put(object())  # type: ignore[arg-type]
    thread.end()
    thread.join(10)
    assert ended.is_set()


def test_the_queue_is_in_order_of_priority_then_arrival(model: Path) -> None:
    with opened(model) as omni:
        # One thread is left to take them up, one after the other.
        stuck = omni.generate([seen("stuck")] * (THREADS - 1))
        blocker = omni.generate(seen("blocker"))
        assert eventually(lambda: len(PREPARED) == THREADS)
        order = [3, -1, 0, 3, -7, 0]
        streams = [omni.generate(seen(f"{number}"), priority=p) for number, p in enumerate(order)]
        assert eventually(lambda: waiting(omni) == THREADS + len(order))
        OPEN.set()
        for stream in (blocker, *streams):
            list(stream)
        taken = [int(text) for text in PREPARED[THREADS:]]
        assert taken == sorted(range(len(order)), key=lambda number: (order[number], number))
        stuck.close()
        assert_nothing_held(omni)


def test_all_that_waits_is_counted_and_the_newcomer_is_refused(model: Path) -> None:
    with opened(model, **{"engine.max_waiting_requests": 5}) as omni:
        # Requests that threads or the engine can take now do not count.
        most = 5 + THREADS + 1
        results = omni.generate([seen(f"{number}") for number in range(most + 7)])
        refused = [next(results) for _ in range(7)]
        assert sorted(output.index for output in refused) == list(range(most, most + 7))
        error = refused[0].error
        assert isinstance(error, OverloadedError)
        assert error.field == "engine.max_waiting_requests"
        assert "0 requests are under way and" in str(error)
        assert "retry later, or raise it" in str(error)
        assert waiting(omni) == most
        with pytest.raises(OverloadedError):
            omni.generate("an equally urgent text", stream=False)
        OPEN.set()
        assert [output.error for output in results if output.finished] == [None] * most
        assert_nothing_held(omni)


def test_the_least_urgent_is_rejected_with_an_error(model: Path) -> None:
    with opened(model, **{"engine.max_waiting_requests": 3}) as omni:
        most = 3 + THREADS + 1
        streams = [omni.generate(seen(f"{number}"), priority=number % 3) for number in range(most)]
        assert eventually(lambda: waiting(omni) == most)
        urgent = omni.generate("urgent", priority=-1, stream=False)
        assert urgent.text == "urgent"
        # The latest of the least urgent.
        victim = max(range(most), key=lambda number: (number % 3, number))
        with pytest.raises(OverloadedError, match="was rejected for a more urgent one") as raised:
            list(streams[victim])
        assert raised.value.field == "engine.max_waiting_requests"
        assert "lower priority number" in raised.value.remedy
        OPEN.set()
        for number, stream in enumerate(streams):
            if number != victim:
                assert "".join(output.text for output in stream).startswith(str(number))
        assert_nothing_held(omni)


def test_bytes_that_wait_are_bounded_and_shared_ones_counted_once(model: Path) -> None:
    big = np.zeros((1000, 1000, 3), np.uint8)
    with opened(model, **{"engine.max_waiting_bytes": 8_000_000}) as omni:
        shared = omni.generate([seen(f"{number}", big) for number in range(30)])
        assert eventually(lambda: waiting(omni) == 30)
        assert 3_000_000 <= omni.usage()["frontend"]["bytes"] < 3_200_000
        second = omni.generate(seen("second", big.copy()), priority=5)
        assert eventually(lambda: waiting(omni) == 31)
        with pytest.raises(OverloadedError, match="hold 8000000 bytes already") as raised:
            omni.generate(seen("third", big.copy()), priority=5, stream=False)
        assert raised.value.field == "engine.max_waiting_bytes"
        with pytest.raises(OverloadedError, match=r"the request alone holds 9\d{6} bytes"):
            omni.generate(seen("huge", np.zeros((3000, 1000, 3), np.uint8)), priority=-9, stream=False)
        assert waiting(omni) == 31, "nobody gave way to what cannot wait"
        text = omni.generate("a small one", priority=9, stream=False)
        assert text.text == "a small one"
        urgent = omni.generate(seen("urgent", big.copy()))
        with pytest.raises(OverloadedError, match="rejected for a more urgent one"):
            list(second)
        shared.close()
        assert eventually(lambda: waiting(omni) == 1)
        assert eventually(lambda: 3_000_000 <= omni.usage()["frontend"]["bytes"] < 3_100_000)
        urgent.close()
        assert_nothing_held(omni)


class Heavy(Slow):
    """A prepared request holds a million bytes."""

    def prepare(self, chat: Chat) -> Prepared:
        prepared = super().prepare(chat)
        assert OPEN.wait(PATIENCE_SECONDS)
        (prompt,) = prepared.inputs["writer"]
        return Prepared({"writer": [Payload(prompt.meta, {"weight": torch.zeros(250_000)})]})


def test_preparing_pauses_where_memory_is_full_and_all_are_answered(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.echo_family.EchoFrontend", Heavy)
    with opened(model, **{"engine.max_active_requests": 1, "engine.max_waiting_bytes": 3_000_000}) as omni:
        OPEN.set()
        first = omni.generate("first", sampling=ENDLESS)
        next(first)
        OPEN.clear()
        rest = omni.generate([f"text {number}" for number in range(30)])
        # New requests are refused once prepared ones fill the memory: all of these are added before that.
        assert eventually(lambda: waiting(omni) == 30)
        OPEN.set()
        # Threads may be at work on one each when the last byte is taken.
        assert eventually(lambda: omni.usage()["frontend"]["bytes"] >= 3_000_000)
        assert not eventually(lambda: len(PREPARED) > 4 + THREADS + 1, 0.3)
        assert omni.usage()["frontend"]["bytes"] <= (3 + THREADS + 1) * 1_010_000
        urgent = omni.generate("urgent", priority=-1)
        assert eventually(lambda: "urgent" in PREPARED), "it need not wait for memory"
        first.close()
        assert "".join(output.text for output in urgent) == "urgent"
        ends = [output.error for output in rest if output.finished]
        gave_way = [error for error in ends if error is not None]
        assert all(isinstance(error, OverloadedError) for error in gave_way)
        assert 1 <= len(gave_way) <= 3, "one for the urgent one's text, and for the million that is made of it"
        assert_nothing_held(omni)


def test_several_answers_wait_as_one_request(model: Path) -> None:
    with opened(model, **{"engine.max_active_requests": 2, "engine.max_waiting_requests": 1}) as omni:
        first = omni.generate("abc", n=5, sampling=SamplingParams(max_tokens=1000))
        next(first)
        assert waiting(omni) == 1
        with pytest.raises(OverloadedError):
            omni.generate("late", stream=False)
        assert sum(output.finished for output in first) == 5
        assert_nothing_held(omni)


@pytest.mark.parametrize("seed", range(4))
def test_floods_and_cancellations_leave_nothing(model: Path, seed: int) -> None:
    """Threads that ask, read, cancel and drop streams at random, beyond every bound: each request has one end, and no memory is
    held."""
    bounds = {"active_requests": 3, "waiting_requests": 2, "waiting_bytes": 20_000}
    limits = {f"engine.max_{name}": most for name, most in bounds.items()}
    ends: list[str] = []
    wrong: list[object] = []

    def ask(omni: Omni, random: random.Random) -> None:
        for number in range(25):
            picture = np.zeros((random.choice([4, 40, 80]), 40, 3), np.uint8)
            prompt: Any = seen(f"{number}", picture) if random.random() < 0.5 else f"text {number}"
            try:
                stream = omni.generate(prompt, priority=random.randrange(-3, 3), n=random.choice([1, 1, 3]))
                left = random.choice([0, 1, 3, 10**6])
                for _ in stream:
                    left -= 1
                    if left <= 0:
                        break
                if random.random() < 0.5:
                    stream.close()
                ends.append("fine")
            except OverloadedError:
                ends.append("refused")
            except OmniError as error:
                wrong.append(error)

    with opened(model, **limits) as omni:
        OPEN.set()
        askers = [
            threading.Thread(target=ask, args=(omni, random.Random(f"{seed} {i}")), daemon=True) for i in range(6)
        ]
        for thread in askers:
            thread.start()
        for thread in askers:
            thread.join(PATIENCE_SECONDS)
        assert not any(thread.is_alive() for thread in askers)
        assert not wrong
        assert len(ends) == 150
        assert "fine" in ends
        assert "refused" in ends
        assert_nothing_held(omni)
        last: Result = omni.generate("the last", stream=False)
        assert last.text == "the last"
