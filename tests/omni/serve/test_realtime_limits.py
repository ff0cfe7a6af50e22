"""Limits of realtime sessions: lengths of turns, the memory that they hold, sizes of events, and their number."""

import asyncio
import base64
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from tests.omni.serve.http_server import Served, echo_omni, served
from tests.omni.serve.realtime import MESSAGE, item_create, session, session_update, silence, speech
from tests.support.echo_family import eventually


def test_a_turn_is_no_longer_than_the_model_hears(echo_folder: Path) -> None:
    async def main(server: Served) -> None:
        async with session(server) as client:
            await client.manual()
            await client.append(silence(0.5))
            sound = base64.b64encode(silence(0.1).tobytes()).decode()
            error = await client.wrong(type="input_audio_buffer.append", audio=sound)
            assert (error.param, "more than 0.5 s" in error.message) == ("input_audio_buffer", True)
            await client.send(type="input_audio_buffer.commit")
            await client.until("conversation.item.done")
            assert (await client.respond()).status == "completed"

    with served(echo_omni(echo_folder, **{"frontend.media.max_audio_seconds": 0.5})) as it:
        asyncio.run(main(it))


@pytest.fixture(scope="module")
def small(echo_folder: Path) -> Iterator[Served]:
    limits = {"max_sessions": 2, "max_items": 3, "max_session_bytes": 40_000, "max_event_bytes": 50_000}
    with served(echo_omni(echo_folder), max_turn_seconds=0.5, **limits) as it:
        yield it


def test_the_memory_of_a_session_is_bounded(small: Served) -> None:
    async def main() -> None:
        async with session(small) as client:
            await client.manual()
            sound = base64.b64encode(silence(0.4).tobytes()).decode()
            append = {"type": "input_audio_buffer.append", "audio": sound}
            await client.send(**append)
            assert "0.5 s" in (await client.wrong(**append)).message
            await client.send(type="input_audio_buffer.commit")
            item_id = (await client.until("input_audio_buffer.committed")).item_id
            await client.send(**append)
            assert (
                "40,000 bytes"
                in (await client.wrong(**item_create(content=[{"type": "input_text", "text": "x" * 9999}]))).message
            )
            await client.send(type="input_audio_buffer.clear")
            await client.until("input_audio_buffer.cleared")
            await client.send(type="conversation.item.delete", item_id=item_id)
            for _ in range(3):
                await client.say("x")
            assert "3 items" in (await client.wrong(**item_create())).message
            assert "3 items" in (await client.wrong(type="response.create")).message
            await client.send(**append)
            assert "3 items" in (await client.wrong(type="input_audio_buffer.commit")).message
            assert small.server.limits.held_bytes == 2 * 24000 * 0.4 + 3

    asyncio.run(main())


def test_settings_and_requests_count_as_memory_of_a_session(small: Served) -> None:
    async def main() -> None:
        held = small.server.limits
        async with session(small) as client:
            await client.manual()
            before = held.held_bytes
            await client.update(instructions="x" * 30_000)
            assert held.held_bytes - before == 30_000
            assert "40,000 bytes" in (await client.wrong(**session_update(cache_salt="x" * 20_000))).message
            await client.update(instructions="")
            await client.update(stop=["x" * 30_000])
            large: dict[str, Any] = {"instructions": "x" * 20_000, "input": []}
            assert "40,000 bytes" in (await client.wrong(type="response.create", response=large)).message
            large = {"input": [{**MESSAGE, "content": [{"type": "input_text", "text": "x" * 20_000}]}]}
            assert "40,000 bytes" in (await client.wrong(type="response.create", response=large)).message
            await client.update(stop=[])
            await client.respond(**large, conversation="none", max_output_tokens=9)
            assert held.held_bytes - before < 100

    asyncio.run(main())


def test_a_turn_without_an_end_is_committed(small: Served) -> None:
    async def main() -> None:
        async with session(small) as client:
            voice = speech(0.7)
            for begin in range(0, len(voice), 2400):
                await client.append(voice[begin : begin + 2400])
            await client.until("input_audio_buffer.committed")
            await client.until("response.done")

    asyncio.run(main())


def test_an_event_that_is_too_large_ends_the_session(small: Served) -> None:
    async def main() -> None:
        async with session(small) as client:
            await client.connection.send_raw("x" * 60_000)
            with pytest.raises(ConnectionClosed) as closed:
                await client.until("error")
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009

    asyncio.run(main())


def test_clients_that_first_send_an_event_learn_that_it_is_too_large(small: Served) -> None:
    """It is larger than all buffers: if the connection were closed, the client would fail while it sends."""
    address = small.url.replace("http", "ws") + "/v1/realtime?model=tiny"
    for _ in range(8):
        with connect(address) as client:
            client.recv()
            with suppress(ConnectionClosed):  # as `recv` raises it
                client.send("x" * 2**24)
            with pytest.raises(ConnectionClosed) as closed:
                client.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
        assert eventually(lambda: not small.http.server_state.connections)


def test_more_sessions_than_there_are_places_are_refused(small: Served) -> None:
    async def main() -> None:
        async with session(small), session(small):
            with pytest.raises(InvalidStatus) as refused:
                async with session(small):
                    pass
            response = refused.value.response
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert json.loads(response.body)["error"]["code"] == "overloaded"
            assert counted() == (2, before[1] + 1, before[2] + 1, before[3] + 2)
        assert eventually(lambda: small.server.limits.sessions == 0)
        async with session(small):
            pass

    def counted() -> tuple[float, ...]:
        """Open sessions, refused ones, and the handshakes with each status."""
        value, path = small.server.metrics.registry.get_sample_value, {"path": "/v1/realtime"}
        return (
            value("omni_realtime_sessions") or 0,
            value("omni_requests_refused_total", {"kind": "realtime"}) or 0,
            value("omni_http_responses_total", {**path, "status": "503"}) or 0,
            value("omni_http_responses_total", {**path, "status": "101"}) or 0,
        )

    before = counted()
    asyncio.run(main())
    assert eventually(lambda: counted() == (0, before[1] + 1, before[2] + 1, before[3] + 3))
