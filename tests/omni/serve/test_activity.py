"""The activity of stages, as events."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from omni.errors import StageError
from omni.serve.activity import PERIOD_SECONDS, Activity, ActivityFeed
from omni.serve.limits import ServeLimits
from omni.serve.options import ServeOptions
from tests.omni.serve.http_server import Served, echo_omni, served
from tests.support.echo_family import eventually
from tests.support.patience import PATIENCE_SECONDS

ENDLESS: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 10**9}


def readings(server: Served) -> Iterator[dict[str, Any]]:
    with httpx.stream("GET", f"{server.url}/v1/omni/activity", timeout=PATIENCE_SECONDS) as response:
        assert response.headers["content-type"].partition(";")[0] == "text/event-stream"
        for line in response.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


def test_a_request_is_seen_at_its_stages_and_is_gone_after_it(echo: Served) -> None:
    watcher = readings(echo)
    idle = next(watcher)
    assert idle["in_flight"] == 0
    assert idle["error"] is None
    assert list(idle["stages"]) == ["writer", "singer", "frontend"]
    with echo.client() as client, client.chat.completions.create(**ENDLESS, stream=True) as stream:
        next(iter(stream))
        busy = next(reading for reading in watcher if reading["in_flight"])
        assert busy["stages"]["writer"]["usage"] == {"requests": 1}
    over = next(reading for reading in watcher if not reading["in_flight"])
    assert over["at"] > busy["at"] > idle["at"]
    assert not next(reading for reading in watcher)["stages"]["writer"]["usage"]["requests"]
    watcher.close()  # type: ignore[attr-defined]
    echo.assert_nothing_held()


def test_nothing_is_read_while_nobody_watches(echo: Served) -> None:
    assert eventually(lambda: not echo.server.activity.watched)
    first, second = readings(echo), readings(echo)
    next(first)
    next(second)
    first.close()  # type: ignore[attr-defined]
    next(second)
    assert echo.server.activity.watched
    second.close()  # type: ignore[attr-defined]
    assert eventually(lambda: not echo.server.activity.watched)


def test_a_watcher_does_not_hold_up_the_end_of_the_server(echo_folder: Path) -> None:
    with served(echo_omni(echo_folder), drain_seconds=int(PATIENCE_SECONDS)) as it:
        watcher = readings(it)
        next(watcher)
        since = time.monotonic()
        it.http.should_exit = True
        list(watcher)
        assert time.monotonic() - since < PATIENCE_SECONDS / 2


class Counted:
    """Stands for a model whose stage counts tokens."""

    failure = None

    def __init__(self) -> None:
        self.tokens = 0
        self.reads = 0
        self.error: Exception | None = None
        self.answers = threading.Event()
        self.answers.set()

    def usage(self) -> Mapping[str, Mapping[str, int]]:
        self.reads += 1
        self.answers.wait()
        if self.error is not None:
            raise self.error
        return {"talker": {"requests": 1}}

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return {"talker": {"tokens": self.tokens}}


def feed() -> tuple[Counted, ActivityFeed]:
    omni = Counted()
    return omni, ActivityFeed(omni, ServeLimits(ServeOptions()))  # type: ignore[arg-type]


def test_rates_are_growth_per_second_and_never_negative() -> None:
    omni, activity = feed()

    async def main() -> list[Activity]:
        watcher = activity.watch()
        got = [await anext(watcher)]
        for tokens in (100, 40):
            omni.tokens = tokens
            got.append(await anext(watcher))
        await watcher.aclose()
        return got

    first, grown, restarted = asyncio.run(main())
    assert first.stages["talker"].rates == {"tokens": 0}
    seconds = grown.at - first.at
    assert seconds >= PERIOD_SECONDS * 0.9
    assert grown.stages["talker"].rates["tokens"] == pytest.approx(100 / seconds, rel=0.01)
    assert restarted.stages["talker"].rates == {"tokens": 0}


def test_watchers_share_readings_and_a_slow_one_gets_the_newest() -> None:
    omni, activity = feed()

    async def main() -> tuple[Activity, Activity]:
        fast, slow = activity.watch(), activity.watch()
        await anext(slow)
        for _ in range(5):
            latest = await anext(fast)
        late = await anext(slow)
        await fast.aclose()
        await slow.aclose()
        return latest, late

    latest, late = asyncio.run(main())
    assert omni.reads <= 7
    assert late.at == latest.at


def test_an_engine_that_hangs_takes_one_thread_as_watchers_come_and_go() -> None:
    omni, activity = feed()
    omni.answers.clear()

    async def main() -> Activity:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        try:
            for _ in range(3):
                watching = asyncio.ensure_future(anext(activity.watch()))
                for _ in range(10):  # steps of the event loop until a thread reads
                    await asyncio.sleep(0)
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await asyncio.to_thread(int)
                watching.cancel()
                await asyncio.wait([watching])
        finally:
            omni.answers.set()
        return await anext(activity.watch())

    assert asyncio.run(main()).stages.keys() == {"talker"}


def test_a_stage_whose_usage_fails_is_reported_and_readings_go_on() -> None:
    omni, activity = feed()

    async def main() -> list[Activity]:
        watcher = activity.watch()
        omni.error = StageError("talker", "reporting its usage", "it is broken")
        got = [await anext(watcher)]
        omni.error = None
        got.append(await anext(watcher))
        await watcher.aclose()
        return got

    broken, well = asyncio.run(main())
    assert broken.error is not None
    assert "it is broken" in broken.error
    assert not broken.stages
    assert well.error is None
    assert set(well.stages) == {"talker"}


def test_a_bug_in_a_reading_ends_the_watchers_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    omni, activity = feed()
    omni.error = RuntimeError("a bug")

    async def main() -> list[Activity]:
        return [reading async for reading in activity.watch()]

    assert asyncio.run(main()) == []
    assert "a bug" in caplog.text


def test_after_the_end_a_watcher_gets_nothing() -> None:
    _, activity = feed()

    async def main() -> tuple[int, int]:
        under_way = activity.watch()
        await anext(under_way)
        activity.end()
        return len([reading async for reading in under_way]), len([reading async for reading in activity.watch()])

    assert asyncio.run(main()) == (0, 0)
