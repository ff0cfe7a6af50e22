"""Realtime sessions that go wrong: bad events, clients that go or stop, and what is too much."""

import asyncio
import base64
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin, Subprotocol

from omni.media import load_image
from tests.omni.serve.http_server import Served, echo_omni, served
from tests.omni.serve.realtime import Client, session, silence, speech
from tests.support.echo_family import BREAK, eventually
from tests.support.patience import PATIENCE_SECONDS

MESSAGE: dict[str, Any] = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}


@pytest.fixture(scope="module")
def voiced(echo_folder: Path) -> Iterator[Served]:
    with served(echo_omni(echo_folder), max_sessions=50) as it:
        yield it


@pytest.fixture
def tidy(voiced: Served) -> Iterator[Served]:
    """Nothing is held after a test."""
    yield voiced
    assert eventually(lambda: voiced.server.limits.sessions == 0)
    voiced.assert_nothing_held()


def _session(**fields: Any) -> dict[str, Any]:
    return {"type": "session.update", "session": {"type": "realtime", **fields}}


def _ratio(**limits: Any) -> dict[str, Any]:
    return {"type": "retention_ratio", "retention_ratio": 0.5, "token_limits": limits}


def _input(**fields: Any) -> dict[str, Any]:
    return _session(instructions="lost", audio={"input": fields})


def _item(**fields: Any) -> dict[str, Any]:
    return {"type": "conversation.item.create", "item": {**MESSAGE, **fields}}


def _part(**part: Any) -> dict[str, Any]:
    return _item(content=[part])


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "nonsense"}, "type", "'nonsense' is not known here; use one of session.update, "),
    ({"type": ["session.update"]}, "type", "not known here"),
    ({"colour": 1}, "type", "missing"),
    ({"type": "input_audio_buffer.append"}, "audio", "missing"),
    ({"type": "input_audio_buffer.append", "audio": "###"}, "audio", "base64"),
    ({"type": "input_audio_buffer.append", "audio": "AAAA"}, "audio", "whole number"),
    ({"type": "input_audio_buffer.commit"}, "input_audio_buffer", "less than 100 ms"),
    ({"type": "input_audio_buffer.clear", "all": True}, "all", "not known"),
    (_session(tools=[{"type": "function"}]), "session.tools", "not supported"),
    (_session(tool_choice="required"), "session.tool_choice", "not supported"),
    (_session(truncation="newest"), "session.truncation", 'use "auto"'),
    (_session(truncation=7), "session.truncation", 'use "auto"'),
    (_session(truncation={"type": "retention_ratio"}), "session.truncation.retention_ratio", "missing"),
    (
        _session(truncation={"type": "retention_ratio", "retention_ratio": 1.5}),
        "session.truncation.retention_ratio",
        "out of range",
    ),
    (
        _session(truncation=_ratio(post_instructions=0)),
        "session.truncation.token_limits.post_instructions",
        "use at least 1",
    ),
    (_session(truncation=_ratio(words=3)), "session.truncation.token_limits.words", "not known"),
    (_session(colour=1), "session.colour", "not known"),
    (_session(type="transcription"), "session.type", "not supported"),
    (_session(output_modalities=["text", "audio"]), "session.output_modalities", "transcript"),
    (_session(max_output_tokens=0), "session.max_output_tokens", "out of range"),
    (_session(max_output_tokens=2**31), "session.max_output_tokens", "out of range"),
    (_session(temperature=-1), "session.temperature", "out of range"),
    (_session(sampling={"nobody": {}}), "session.sampling.nobody", "no stage"),
    (_session(model="gpt"), "model", "not served"),
    (_input(noise_reduction={"type": "near_field"}), "session.audio.input.noise_reduction", "not supported"),
    (_input(format={"type": "audio/mp3"}), "session.audio.input.format.type", "unknown"),
    (_input(format={"type": "audio/pcm", "rate": 8000}), "session.audio.input.format.rate", "24000"),
    (
        _input(turn_detection={"type": "prosodic_vad", "eagerness": "low"}),
        "session.audio.input.turn_detection.type",
        "not supported",
    ),
    (
        _input(turn_detection={"type": "semantic_vad", "eagerness": "very"}),
        "session.audio.input.turn_detection.eagerness",
        "very",
    ),
    (
        _input(turn_detection={"type": "semantic_vad", "threshold": 0.5}),
        "session.audio.input.turn_detection.threshold",
        "not known",
    ),
    (
        _input(turn_detection={"type": "server_vad", "idle_timeout_ms": 5000}),
        "session.audio.input.turn_detection.idle_timeout_ms",
        "null",
    ),
    (
        _input(turn_detection={"type": "server_vad", "threshold": 2}),
        "session.audio.input.turn_detection.threshold",
        "out of range",
    ),
    (_session(audio={"output": {"voice": "nobody"}}), "session.audio.output.voice", "unknown"),
    (_session(audio={"output": {"speed": 1.5}}), "session.audio.output.speed", "not supported"),
    (_item(type="function_call_output"), "item.type", "not supported"),
    (_item(role="robot"), "item.role", "unknown"),
    (_item(content=[]), "item.content", "empty"),
    (_part(type="output_text", text="x"), "item.content[0].type", "user"),
    (_part(type="input_text"), "item.content[0].text", "missing"),
    (_part(type="input_audio", audio="AAAA"), "item.content[0].audio", "whole number"),
    ({**_item(), "previous_item_id": "nobody"}, "previous_item_id", "no item"),
    ({"type": "conversation.item.retrieve", "item_id": "nobody"}, "item_id", "no item"),
    ({"type": "conversation.item.delete", "item_id": "nobody"}, "item_id", "no item"),
    (
        {"type": "conversation.item.truncate", "item_id": "mine", "content_index": 0, "audio_end_ms": 0},
        "item_id",
        "assistant",
    ),
    (_item(id="mine"), "item.id", "taken"),
    ({"type": "response.create", "response": {"tools": [{"type": "mcp"}]}}, "response.tools", "not supported"),
    ({"type": "response.create", "response": {"conversation": "other"}}, "response.conversation", "unknown"),
    ({"type": "response.create", "response": {"cache_salt": "x"}}, "response.cache_salt", "not known"),
    (
        {"type": "response.create", "response": {"input": [{"type": "item_reference"}]}},
        "response.input[0].id",
        "no item",
    ),
    ({"type": "response.cancel"}, "response_id", "no response"),
]


def test_a_bad_event_is_refused_by_name_and_harms_nothing(tidy: Served) -> None:
    async def main() -> None:
        async with session(tidy) as client:
            await client.manual(instructions="be kind")
            await client.say("hello", id="mine")
            for number, (event, param, words) in enumerate(WRONG):
                error = await client.wrong(**{"event_id": f"wrong{number}", **event})
                assert (error.event_id, error.param, error.type) == (
                    f"wrong{number}",
                    param,
                    "not_found_error" if param == "model" else "invalid_request_error",
                ), error
                assert words in error.message, error
            for raw in ("{", "[1]", '"x"', b"\0\1"):
                await client.connection.send_raw(raw)
                error = (await client.until("error")).error
                assert (error.param, error.event_id) == ("event", None)
            response = await client.respond()
            assert response.output[0].content[0].transcript == "be kind|hello"

    asyncio.run(main())


def test_a_response_to_nothing_is_refused_at_once(tidy: Served) -> None:
    async def main() -> None:
        async with session(tidy) as client:
            await client.manual()
            empty: list[tuple[dict[str, Any], str]] = [({}, "conversation"), ({"input": []}, "response.input")]
            for response, param in empty:
                error = await client.wrong(type="response.create", response=response, event_id="mine")
                assert (error.code, error.param, error.event_id) == ("invalid_value", param, "mine")
                assert error.message.startswith(f"{param}: is empty")
            await client.say("")
            assert (await client.wrong(type="response.create")).param == "conversation"
            await client.say("x")
            assert (await client.wrong(type="response.create", response={"input": []})).param == "response.input"
            assert not client.of("response.created")
            assert (await client.respond(input=[], instructions="sing")).status == "completed"
            assert client.text("response.output_audio_transcript.delta") == "sing"

    asyncio.run(main())


@pytest.mark.parametrize("samples", [0, 2399])
def test_too_little_sound_is_no_turn(tidy: Served, samples: int) -> None:
    async def main() -> None:
        async with session(tidy) as client:
            await client.manual()
            await client.append(silence(samples / 24000))
            error = await client.wrong(type="input_audio_buffer.commit", event_id="mine")
            assert (error.code, error.param) == ("input_audio_buffer_commit_empty", "input_audio_buffer")
            assert (error.type, error.event_id) == ("invalid_request_error", "mine")
            assert f"holds {samples // 24} ms of sound, less than 100 ms" in error.message
            # What is there stays.
            await client.append(silence((2400 - samples) / 24000))
            await client.send(type="input_audio_buffer.commit")
            await client.until("conversation.item.done")
            assert (await client.respond()).status == "completed"

    asyncio.run(main())


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


def test_media_of_items_are_read_only_where_there_is_room(echo_folder: Path, picture: str) -> None:
    content = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": picture}]

    async def main(server: Served) -> None:
        async with session(server) as other, session(server) as client:
            await other.manual(max_output_tokens=10**9)
            await other.say("endless")
            await other.send(type="response.create")
            await other.until("response.output_audio.delta")
            await client.manual()
            refused = server.server.limits.refused
            error = await client.wrong(**_item(content=content, id="seen"))
            assert (error.code, error.type) == ("overloaded", "overloaded_error")
            assert server.server.limits.refused == refused + 1
            await other.send(type="response.cancel")
            await other.until("response.done")
            await client.say("", content=content, id="seen")

    with served(echo_omni(echo_folder), max_requests=1) as it:
        asyncio.run(main(it))


def test_an_answer_that_fails_says_why_and_the_session_goes_on(tidy: Served) -> None:
    async def main() -> None:
        async with session(tidy) as client:
            await client.manual()
            await client.say(f"hello{BREAK}", id="bad")
            failed = await client.respond()
            assert (failed.status, failed.status_details.error.code) == ("failed", "internal_error")
            assert failed.output[0].status == "incomplete"
            await client.send(type="conversation.item.delete", item_id="bad")
            await client.send(type="conversation.item.delete", item_id=failed.output[0].id)
            await client.say("well")
            assert (await client.respond()).status == "completed"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("part", "field", "words"),
    [
        ({"type": "input_image", "image_url": "data:image/png;base64,aGVsbG8="}, "image_url", "is not a picture"),
        ({"type": "input_image", "image_url": "file:///etc/passwd"}, "image_url", "local files are not opened"),
        ({"type": "input_image", "image_url": "http://example.com/x.png"}, "image_url", "not downloaded"),
        ({"type": "input_image", "image_url": ""}, "image_url", "is empty"),
    ],
)
def test_a_bad_medium_is_no_item(tidy: Served, picture: str, part: dict[str, str], field: str, words: str) -> None:
    async def main() -> None:
        async with session(tidy) as client:
            await client.manual()
            good = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": picture}]
            event = {"type": "message", "role": "user", "content": [*good, part], "id": "bad"}
            error = await client.wrong(type="conversation.item.create", item=event, event_id="mine")
            assert (error.event_id, error.param) == ("mine", f"item.content[2].{field}")
            assert error.message.startswith(f"item.content[2].{field}: ")
            assert words in error.message
            assert (await client.wrong(type="conversation.item.retrieve", item_id="bad")).param == "item_id"
            await client.say("x", content=good)
            response = await client.respond()
            assert response.output[0].content[0].transcript == "a|<6x4>"

    asyncio.run(main())


def test_a_sound_that_is_too_long_is_no_item(echo_folder: Path) -> None:
    async def main(server: Served) -> None:
        async with session(server) as client:
            sound = base64.b64encode(silence(0.6).tobytes()).decode()
            item = {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": sound}]}
            error = await client.wrong(type="conversation.item.create", item=item)
            assert (error.param, "is too long" in error.message) == ("item.content[0].audio", True)

    with served(echo_omni(echo_folder, **{"frontend.media.max_audio_seconds": 0.5})) as it:
        asyncio.run(main(it))


class SlowPicture:
    """item: an event with a picture, whose reading begins with `reading`, and ends after `release`."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.item = _part(type="input_image", image_url=url)
        self.reading, self.release = threading.Event(), threading.Event()
        self._load = load_image
        monkeypatch.setattr("omni.frontend.messages.load_image", self._slow)

    def _slow(self, *arguments: Any, **options: Any) -> Any:
        self.reading.set()
        assert self.release.wait(PATIENCE_SECONDS)
        return self._load(*arguments, **options)

    async def begun(self, client: Client) -> None:
        await client.send(**self.item)
        assert await asyncio.to_thread(self.reading.wait, PATIENCE_SECONDS)


@pytest.fixture
def slow(picture: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowPicture]:
    made = SlowPicture(picture, monkeypatch)
    yield made
    made.release.set()


def test_other_clients_are_answered_while_a_picture_is_read(tidy: Served, slow: SlowPicture) -> None:
    async def main() -> None:
        async with session(tidy) as client:
            await client.manual()
            await slow.begun(client)
            async with session(tidy) as other:
                await other.manual(output_modalities=["text"])
            slow.release.set()
            assert (await client.until("conversation.item.added")).item.content[0].type == "input_image"

    asyncio.run(main())


def test_a_client_that_goes_while_its_picture_is_read_frees_its_session(tidy: Served, slow: SlowPicture) -> None:
    async def main() -> None:
        async with session(tidy) as client:
            await slow.begun(client)
            client.connection._connection.transport.abort()
            assert await asyncio.to_thread(eventually, lambda: tidy.server.limits.sessions == 0)

    asyncio.run(main())
    assert not slow.release.is_set()


def test_a_response_is_cancelled_while_a_picture_is_read(tidy: Served, slow: SlowPicture) -> None:
    """And the user's speech ends another."""

    async def main() -> None:
        async with session(tidy) as client:
            await client.update(max_output_tokens=10**9)
            await client.say("hello")
            await client.send(type="response.create")
            await client.until("response.output_audio.delta")
            await slow.begun(client)
            await client.send(type="response.cancel")
            assert (await client.until("response.done")).response.status_details.reason == "client_cancelled"
            await client.append(speech(0.5))
            await client.until("input_audio_buffer.speech_started")
            slow.release.set()
            assert (await client.until("conversation.item.added")).item.content[0].type == "input_image"

    asyncio.run(main())


def test_what_belongs_behind_a_picture_waits_for_it(tidy: Served, slow: SlowPicture) -> None:
    """A response, and what cancels it."""

    async def main() -> None:
        async with session(tidy) as client:
            await client.manual(max_output_tokens=10**9)
            await slow.begun(client)
            await client.send(type="response.create")
            await client.send(type="response.cancel")
            error = await client.wrong(type="nonsense")
            assert error.param == "type"
            assert not client.of("response.created")
            slow.release.set()
            response = (await client.until("response.done")).response
            assert response.status_details.reason == "client_cancelled"
            kinds = [event.type for event in client.events]
            assert kinds.index("conversation.item.done") < kinds.index("response.created")

    asyncio.run(main())


def test_events_that_wait_for_a_picture_have_a_bound(echo_folder: Path, slow: SlowPicture) -> None:
    async def main(server: Served) -> None:
        async with session(server) as client:
            await client.manual()
            await slow.begun(client)
            await client.send(**_item(id="waits"))
            error = await client.wrong(**_item(id="refused"), event_id="mine")
            assert (error.event_id, error.param) == ("mine", "event")
            assert "comes while 2 events wait for an item" in error.message
            slow.release.set()
            while (await client.until("conversation.item.done")).item.id != "waits":
                pass

    with served(echo_omni(echo_folder), max_items=2) as it:
        asyncio.run(main(it))
        it.assert_nothing_held()


def test_sessions_at_once_do_not_mix(tidy: Served) -> None:
    async def one(number: int) -> None:
        async with session(tidy) as client:
            await client.manual(instructions=f"i{number}")
            for turn in range(3):
                await client.say(f"{number}.{turn}")
            response = await client.respond()
            expected = f"i{number}|{number}.0|{number}.1|{number}.2"
            assert response.output[0].content[0].transcript == expected

    async def main() -> None:
        await asyncio.gather(*(one(number) for number in range(20)))

    asyncio.run(main())


def test_clients_that_go_at_random_free_everything(tidy: Served) -> None:
    dice = random.Random(1)

    async def leave(delay: float) -> None:
        async with session(tidy) as client:
            await client.update(max_output_tokens=10**9)
            await client.append(speech(0.2))
            await client.say("hello")
            await client.send(type="response.create")
            try:
                async with asyncio.timeout(delay):
                    while True:
                        await client.next()
            except TimeoutError:
                # Without a closing handshake.
                client.connection._connection.transport.abort()

    async def main() -> None:
        await asyncio.gather(*(leave(dice.uniform(0, 0.3)) for _ in range(30)))

    asyncio.run(main())


def _handshake(server: Served, buffer: int | None = None) -> socket.socket:
    """A websocket that reads nothing after its handshake, and answers no ping."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    head = "GET /v1/realtime HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    head += "sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    connection = socket.socket()
    if buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.connect((host, int(port)))
    connection.sendall(head.encode())
    assert connection.recv(12) == b"HTTP/1.1 101"
    return connection


def test_a_half_open_connection_is_ended_by_a_ping(echo_folder: Path) -> None:
    with served(echo_omni(echo_folder), ping_seconds=0.5) as it, _handshake(it):
        assert eventually(lambda: it.server.limits.sessions == 1)
        since = time.monotonic()
        assert eventually(lambda: it.server.limits.sessions == 0)
        assert time.monotonic() - since > 0.4
        it.assert_nothing_held()


def _frame(event: dict[str, Any]) -> bytes:
    """A masked text frame, whose mask is zero."""
    data = json.dumps(event).encode()
    assert len(data) < 2**16
    size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2)
    return b"\x81" + size + b"\0\0\0\0" + data


def test_a_client_that_stops_reading_loses_its_session(echo_folder: Path) -> None:
    events = (_session(max_output_tokens=10**9), _item(), {"type": "response.create"})
    patient = {"stalled_seconds": 0.3, "ping_seconds": 3600}
    with served(echo_omni(echo_folder), **patient) as it, _handshake(it, buffer=4096) as connection:
        connection.sendall(b"".join(map(_frame, events)))
        assert eventually(lambda: it.server.limits.in_flight == 1)
        assert eventually(lambda: it.server.limits.in_flight == 0)
        assert eventually(lambda: it.server.limits.sessions == 0)
        it.assert_nothing_held()


@pytest.fixture(scope="module")
def small(echo_folder: Path) -> Iterator[Served]:
    limits = {"max_sessions": 2, "max_items": 3, "max_session_bytes": 40_000, "max_event_bytes": 50_000}
    with served(echo_omni(echo_folder), max_turn_seconds=0.5, **limits) as it:
        yield it


def test_what_a_session_holds_is_bounded(small: Served) -> None:
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
                in (await client.wrong(**_item(content=[{"type": "input_text", "text": "x" * 9999}]))).message
            )
            await client.send(type="input_audio_buffer.clear")
            await client.until("input_audio_buffer.cleared")
            await client.send(type="conversation.item.delete", item_id=item_id)
            for _ in range(3):
                await client.say("x")
            assert "3 items" in (await client.wrong(**_item())).message
            assert "3 items" in (await client.wrong(type="response.create")).message
            await client.send(**append)
            assert "3 items" in (await client.wrong(type="input_audio_buffer.commit")).message
            assert small.server.limits.held_bytes == 2 * 24000 * 0.4 + 3

    asyncio.run(main())


def test_settings_and_requests_count_for_what_a_session_holds(small: Served) -> None:
    async def main() -> None:
        held = small.server.limits
        async with session(small) as client:
            await client.manual()
            before = held.held_bytes
            await client.update(instructions="x" * 30_000)
            assert held.held_bytes - before == 30_000
            assert "40,000 bytes" in (await client.wrong(**_session(cache_salt="x" * 20_000))).message
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


def test_a_key_and_a_known_model_are_asked_for(echo_folder: Path) -> None:
    async def status(server: Served, key: str, model: str) -> int:
        client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key)
        with pytest.raises(InvalidStatus) as refused:
            async with client, client.realtime.connect(model=model):
                pass
        return int(refused.value.response.status_code)

    async def main(server: Served) -> None:
        assert await status(server, "wrong", "tiny") == 401
        assert await status(server, "secret", "other") == 404
        client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="secret")
        async with client, client.realtime.connect(model="tiny") as connection:
            assert (await Client(connection).next()).type == "session.created"
        # Browsers cannot send headers.
        address = server.url.replace("http", "ws") + "/v1/realtime"
        protocols = [Subprotocol("realtime"), Subprotocol("openai-insecure-api-key.secret")]
        async with connect(address, subprotocols=protocols) as websocket:
            assert websocket.subprotocol == "realtime"
            assert json.loads(await websocket.recv())["type"] == "session.created"

    with served(echo_omni(echo_folder), api_keys=("secret",)) as it:
        asyncio.run(main(it))


def test_pages_of_other_servers_are_kept_out(tidy: Served) -> None:
    address = tidy.url.replace("http", "ws") + "/v1/realtime"

    async def main() -> None:
        async with connect(address, origin=Origin(tidy.url)) as websocket:
            assert json.loads(await websocket.recv())["type"] == "session.created"
        with pytest.raises(InvalidStatus) as refused:
            async with connect(address, origin=Origin("http://evil.example")):
                pass
        assert refused.value.response.status_code == 403
        # Behind a proxy that gives no Host on, browsers that say so are believed.
        own = {"sec-fetch-site": "same-origin"}
        async with connect(address, origin=Origin("https://omni.example"), additional_headers=own) as websocket:
            assert json.loads(await websocket.recv())["type"] == "session.created"
        with pytest.raises(InvalidStatus):
            async with connect(address, origin=Origin(tidy.url), additional_headers={"sec-fetch-site": "cross-site"}):
                pass

    asyncio.run(main())


async def ended(server: Served, tokens: int) -> tuple[list[str], int]:
    """The types of the events from the moment when the server ends, and the code with which the session closes.

    tokens: of the response; 0 for a session without one."""
    async with session(server) as client:
        await client.update(max_output_tokens=tokens or 1)
        if tokens:
            await client.say("hello")
            await client.send(type="response.create")
            await client.until("response.output_audio.delta")
        server.http.should_exit = True
        seen = len(client.events)
        with pytest.raises(ConnectionClosed) as closed:
            await client.until("none of them")
        assert closed.value.rcvd is not None
        return [event.type for event in client.events[seen:]], closed.value.rcvd.code


@pytest.mark.parametrize(
    ("tokens", "drain_seconds", "done"),
    [(2000, 600, True), (10**9, 1, False), (0, 600, False)],
    ids=["a response", "an endless one", "none"],
)
def test_sessions_end_with_their_response_when_the_server_does(
    echo_folder: Path, tokens: int, drain_seconds: int, done: bool
) -> None:
    with served(echo_omni(echo_folder), drain_seconds=drain_seconds) as it:
        types, code = asyncio.run(ended(it, tokens))
        assert (types[-1:] == ["response.done"]) == done
        assert code == 1012
        assert eventually(lambda: (it.server.limits.sessions, it.server.limits.in_flight) == (0, 0))
