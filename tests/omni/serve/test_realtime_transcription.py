"""Transcripts of the user's speech in realtime sessions, through the OpenAI SDK. The echo family writes its prompt."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.omni.serve.http_server import STRICT, Served, echo_omni, served
from tests.omni.serve.realtime import Client, session, silence, speech
from tests.support.echo_family import BREAK, OPENED, eventually
from tests.support.patience import PATIENCE_SECONDS

ASKED = "<8000 samples>|Transcribe the speech."
"""The start of the transcript of half a second."""
TRANSCRIPT = "conversation.item.input_audio_transcription"


@pytest.fixture
def voiced(echo_folder: Path) -> Iterator[Served]:
    """No memory is held after a test."""
    with served(echo_omni(echo_folder)) as it:
        yield it
        assert eventually(lambda: it.server.limits.sessions == 0)
        it.assert_nothing_held()


async def listening(client: Client, **transcription: Any) -> Any:
    """Turns are committed by the client, and transcribed."""
    return await client.update(audio={"input": {"turn_detection": None, "transcription": transcription}})


async def commit(client: Client) -> str:
    """The id of half a second's item."""
    await client.append(speech(0.5))
    await client.send(type="input_audio_buffer.commit")
    return str((await client.until("input_audio_buffer.committed")).item_id)


def test_a_committed_turn_is_transcribed(voiced: Served) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            after = await listening(client, model="gpt-4o-mini-transcribe", language="en", prompt="names")
            asked = after.audio.input.transcription
            assert (asked.model, asked.language, asked.prompt) == ("gpt-4o-mini-transcribe", "en", "names")
            held = voiced.server.limits.held_bytes + 2 * 12000
            item_id = await commit(client)
            done = await client.until(f"{TRANSCRIPT}.completed")
            assert (done.item_id, done.content_index) == (item_id, 0)
            assert done.transcript.startswith(ASKED)
            assert "The language is 'en'." in done.transcript
            assert done.transcript.endswith("names")
            assert client.text(f"{TRANSCRIPT}.delta") == done.transcript
            assert {event.item_id for event in client.of(f"{TRANSCRIPT}.delta")} == {item_id}
            assert done.usage.output_tokens == len(done.transcript)
            assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens
            assert OPENED[-1].sampling.temperature == 0
            await client.send(type="conversation.item.retrieve", item_id=item_id)
            item = (await client.until("conversation.item.retrieved")).item
            assert item.content[0].transcript == done.transcript
            assert voiced.server.limits.held_bytes == held + len(done.transcript)
            # The model still gets the sound itself.
            await client.respond()
            assert client.text("response.output_audio_transcript.delta") == "<8000 samples>"

    asyncio.run(main())


def test_a_turn_that_the_server_finds_is_transcribed(voiced: Served) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            await client.update(audio={"input": {"transcription": {"model": "whisper-1"}}})
            await client.append(np.concatenate([silence(0.6), speech(0.6), silence(0.9)]))
            ends = {(await client.until("response.done", f"{TRANSCRIPT}.completed")).type for _ in range(2)}
            assert len(ends) == 2
            [committed] = client.of("input_audio_buffer.committed")
            assert client.of(f"{TRANSCRIPT}.completed")[0].item_id == committed.item_id

    asyncio.run(main())


def test_null_turns_transcripts_off(voiced: Served) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            assert client.events[0].session.audio.input.transcription is None
            await listening(client, model="whisper-1")
            kept = await client.update(audio={"input": {}})
            assert kept.audio.input.transcription.model == "whisper-1"
            off = await client.update(audio={"input": {"transcription": None}})
            assert off.audio.input.transcription is None
            await commit(client)
            await client.respond()
            assert not [event for event in client.events if event.type.startswith(TRANSCRIPT)]

    asyncio.run(main())


def test_a_failed_transcript_is_reported_and_the_session_continues(voiced: Served) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            await listening(client, model="whisper-1", prompt=BREAK)
            item_id = await commit(client)
            failed = await client.until(f"{TRANSCRIPT}.failed")
            assert (failed.item_id, failed.error.code) == (item_id, "internal_error")
            await listening(client, model="whisper-1")
            await commit(client)
            assert (await client.until(f"{TRANSCRIPT}.completed")).transcript.startswith(ASKED)
            assert (await client.respond()).status == "completed"

    asyncio.run(main())


def test_items_that_are_gone_have_no_transcript(voiced: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns are transcribed in order; the second is deleted while the first is transcribed."""
    release, generate = threading.Event(), voiced.server.generate

    @asynccontextmanager
    async def held_back(*arguments: Any, **named: Any) -> AsyncIterator[Any]:
        assert await asyncio.to_thread(release.wait, PATIENCE_SECONDS)
        async with generate(*arguments, **named) as outputs:
            yield outputs

    async def main() -> None:
        async with session(voiced) as client:
            await listening(client, model="whisper-1")
            ids = [await commit(client) for _ in range(3)]
            await client.send(type="conversation.item.delete", item_id=ids[1])
            await client.until("conversation.item.deleted")
            release.set()
            done = [(await client.until(f"{TRANSCRIPT}.completed")).item_id for _ in range(2)]
            assert done == [ids[0], ids[2]]
            assert not client.of(f"{TRANSCRIPT}.failed")

    monkeypatch.setattr(voiced.server, "generate", held_back)
    asyncio.run(main())


def test_a_client_that_goes_ends_its_transcripts(voiced: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is under way, and stays so; others wait."""
    generate = voiced.server.generate

    async def without_end(outputs: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for output in outputs:
            yield output
            if output.text:
                await asyncio.Event().wait()

    @asynccontextmanager
    async def generate_without_end(*arguments: Any, **named: Any) -> AsyncIterator[Any]:
        async with generate(*arguments, **named) as outputs:
            yield without_end(outputs)

    async def main() -> None:
        async with session(voiced) as client:
            await listening(client, model="whisper-1")
            await commit(client)
            await client.until(f"{TRANSCRIPT}.delta")
            await commit(client)
            assert voiced.server.limits.in_flight == 1
            client.connection._connection.transport.abort()

    monkeypatch.setattr(voiced.server, "generate", generate_without_end)
    asyncio.run(main())
    assert eventually(lambda: voiced.server.limits.in_flight == 0)


@pytest.mark.parametrize(
    ("asked", "field", "words"),
    [
        ({"model": "whisper-1", "keywords": ["a"]}, "session.audio.input.transcription.keywords", "not known"),
        ({"language": 3}, "session.audio.input.transcription.language", "str"),
        ("whisper-1", "session.audio.input.transcription", "object"),
    ],
)
def test_wrong_settings_of_transcripts_are_refused(voiced: Served, asked: Any, field: str, words: str) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            update = {"type": "realtime", "audio": {"input": {"transcription": asked}}}
            error = await client.wrong(type="session.update", session=update)
            assert error.param == field
            assert words in error.message

    asyncio.run(main())


def test_a_model_that_writes_nothing_transcribes_nothing(tmp_path: Path) -> None:
    from omni import AsyncOmni
    from omni_csm.tiny import write_tiny
    from tests.support.tiny_omni import tiny_plugins

    async def main(it: Served) -> None:
        async with session(it) as client:
            update = {"type": "realtime", "audio": {"input": {"transcription": {"model": "whisper-1"}}}}
            error = await client.wrong(type="session.update", session=update)
            assert error.param == "session.audio.input.transcription"
            assert "writes no text" in error.message

    write_tiny(tmp_path / "tiny", seed=1)
    with served(AsyncOmni(tmp_path / "tiny", device="cpu", plugins=tiny_plugins(), overrides=STRICT)) as it:
        asyncio.run(main(it))
