"""The asyncio interface, on a family that echoes."""

import asyncio
from pathlib import Path

import pytest

from omni import AsyncOmni, SamplingParams
from omni.errors import InputError, StageError
from tests.support.echo_family import GATES, echo_plugins
from tests.support.echo_omni import ENDLESS, coroutine, until_idle


@coroutine
async def test_a_stream_has_text_sound_and_metrics(omni: AsyncOmni) -> None:
    outputs = [output async for output in omni.generate("hello")]
    assert "".join(output.text for output in outputs) == "hello"
    assert any(output.audio is not None for output in outputs)
    assert outputs[-1].finished
    assert outputs[-1].metrics is not None


@coroutine
async def test_complete_returns_one_result_for_each_request(omni: AsyncOmni) -> None:
    result = await omni.complete("hello")
    assert result.text == "hello"
    assert result.audio is not None
    results = await omni.complete(["one", "", "two"])
    assert [result.text for result in results] == ["one", "", "two"]
    assert isinstance(results[1].error, InputError)


@coroutine
async def test_hundreds_at_once(omni: AsyncOmni) -> None:
    texts = [f"request {index}" for index in range(300)]
    results = await asyncio.gather(*(omni.complete(text) for text in texts))
    assert [result.text for result in results] == texts


@coroutine
async def test_break_cancels_the_request(omni: AsyncOmni) -> None:
    async for output in omni.generate("abc", sampling=ENDLESS):
        assert output.tokens
        break
    await until_idle(omni)


@coroutine
async def test_aclose_gives_the_request_up(omni: AsyncOmni) -> None:
    stream = omni.generate("abc", sampling=ENDLESS)
    await anext(stream)
    await stream.aclose()
    await until_idle(omni)
    assert [output async for output in stream] == []
    async with omni.generate("abc", sampling=ENDLESS) as other:
        await anext(other)
    await until_idle(omni)


@coroutine
async def test_cancelling_the_task_cancels_its_requests(omni: AsyncOmni) -> None:
    async def read() -> None:
        async for _ in omni.generate("abc", sampling=ENDLESS):
            started.set()

    started = asyncio.Event()
    tasks = [asyncio.create_task(read()), asyncio.create_task(omni.complete(["abc", "d"], sampling=ENDLESS))]
    await started.wait()
    for task in tasks:
        task.cancel()
    assert [type(x) for x in await asyncio.gather(*tasks, return_exceptions=True)] == [asyncio.CancelledError] * 2
    await until_idle(omni)


@coroutine
async def test_a_timeout_while_the_request_is_prepared(omni: AsyncOmni) -> None:
    GATES["never"].clear()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(omni.complete("wait never"), 0.05)
    await until_idle(omni)  # long before it is prepared
    GATES["never"].set()


@coroutine
async def test_waiting_does_not_hold_up_the_loop(omni: AsyncOmni) -> None:
    GATES["async"].clear()
    task = asyncio.create_task(omni.complete("wait async"))
    assert (await omni.complete("quick")).text == "quick"
    assert not task.done()
    GATES["async"].set()
    assert (await task).text == "wait async"


@coroutine
async def test_a_reader_that_is_behind_does_not_hold_up_the_loop(omni: AsyncOmni) -> None:
    read = other = 0
    stream = omni.generate("abc", sampling=SamplingParams(max_tokens=2000), modalities=("text",))
    while not omni.idle:
        pass
    task = asyncio.create_task(asyncio.sleep(0))
    async for _ in stream:
        read += 1
        other += not task.done()
    assert read == 2001
    assert other <= 2


@coroutine
async def test_wrong_settings_are_refused_at_once(omni: AsyncOmni) -> None:
    with pytest.raises(InputError, match="modalities"):
        omni.generate("hello", modalities=("smell",))
    with pytest.raises(InputError, match="hold no text"):
        await omni.complete("")


@coroutine
async def test_close_while_busy(omni: AsyncOmni) -> None:
    stream = omni.generate("abc", sampling=ENDLESS)
    await anext(stream)
    await omni.close()
    with pytest.raises(StageError, match="the engine was closed"):
        async for _ in stream:
            pass


def test_a_loop_that_ends_leaves_nothing_behind(model: Path) -> None:
    omni = AsyncOmni(model, device="cpu", plugins=echo_plugins())

    async def abandon() -> None:
        await anext(omni.generate("abc", sampling=ENDLESS))

    asyncio.run(abandon())
    asyncio.run(until_idle(omni))
    assert asyncio.run(omni.complete("again")).text == "again"
    asyncio.run(omni.close())
