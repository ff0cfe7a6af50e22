"""Items of realtime sessions with pictures and sound: refused ones, and pictures that take long to read."""

import asyncio
import base64
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omni.media import load_image
from tests.omni.serve.http_server import Served, echo_omni, served
from tests.omni.serve.realtime import Client, item_create, session, silence, speech
from tests.support.echo_family import eventually
from tests.support.patience import PATIENCE_SECONDS


def test_media_of_items_are_read_only_while_a_slot_is_free(echo_folder: Path, picture: str) -> None:
    content = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": picture}]

    async def main(server: Served) -> None:
        async with session(server) as other, session(server) as client:
            await other.manual(max_output_tokens=10**9)
            await other.say("endless")
            await other.send(type="response.create")
            await other.until("response.output_audio.delta")
            await client.manual()
            refused = server.server.limits.refused
            error = await client.wrong(**item_create(content=content, id="seen"))
            assert (error.code, error.type) == ("overloaded", "overloaded_error")
            assert server.server.limits.refused == refused + 1
            await other.send(type="response.cancel")
            await other.until("response.done")
            await client.say("", content=content, id="seen")

    with served(echo_omni(echo_folder), max_requests=1) as it:
        asyncio.run(main(it))


@pytest.mark.parametrize(
    ("part", "field", "words"),
    [
        ({"type": "input_image", "image_url": "data:image/png;base64,aGVsbG8="}, "image_url", "is not a picture"),
        ({"type": "input_image", "image_url": "file:///etc/passwd"}, "image_url", "local files are not opened"),
        ({"type": "input_image", "image_url": "http://example.com/x.png"}, "image_url", "not downloaded"),
        ({"type": "input_image", "image_url": ""}, "image_url", "is empty"),
    ],
)
def test_an_item_with_a_bad_medium_is_refused(
    tidy: Served, picture: str, part: dict[str, str], field: str, words: str
) -> None:
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


def test_an_item_with_a_sound_that_is_too_long_is_refused(echo_folder: Path) -> None:
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
        self.item = item_create(content=[{"type": "input_image", "image_url": url}])
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


def test_events_behind_a_picture_wait_for_it(tidy: Served, slow: SlowPicture) -> None:
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
            await client.send(**item_create(id="waits"))
            error = await client.wrong(**item_create(id="refused"), event_id="mine")
            assert (error.event_id, error.param) == ("mine", "event")
            assert "comes while 2 events wait for an item" in error.message
            slow.release.set()
            while (await client.until("conversation.item.done")).item.id != "waits":
                pass

    with served(echo_omni(echo_folder), max_items=2) as it:
        asyncio.run(main(it))
        it.assert_nothing_held()
