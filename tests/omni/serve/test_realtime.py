"""Conversations through the OpenAI SDK's realtime client: turns of text and sound, and every event against its types."""

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import soxr
from openai.types.realtime import RealtimeServerEvent

from omni.serve.realtime.server_events import ServerEvent
from tests.omni.serve.http_server import Served, echo_omni, served
from tests.omni.serve.realtime import PCM_RATE, Client, session, silence, speech
from tests.support.echo_family import OPENED, RATE, SAMPLES, eventually, pitch

ENDLESS: dict[str, Any] = {"max_output_tokens": 10**9}
# Of an answer, before the user interrupts it. The amount that follows depends on the scheduler of the machine.
HEARD_SECONDS = 0.3


@pytest.fixture(scope="module")
def voiced(echo_folder: Path) -> Iterator[Served]:
    """No test may leave a session, or anything that one holds."""
    with served(echo_omni(echo_folder)) as it:
        yield it
        assert eventually(lambda: it.server.limits.sessions == 0)


def _events(kind: type[ServerEvent]) -> Iterator[type[ServerEvent]]:
    """Those with a name, of a class and its subclasses."""
    for each in kind.__subclasses__():
        yield from _events(each)
        if not each.__name__.startswith("_"):
            yield each


def test_every_event_has_the_fields_of_the_sdk() -> None:
    """Those that it requires, and no others."""
    (types, *_) = get_args(RealtimeServerEvent)
    known = {get_args(each.model_fields["type"].annotation)[0]: each.model_fields for each in get_args(types)}
    found = {event.__struct_config__.tag: {"type", *event.__struct_fields__} for event in _events(ServerEvent)}
    assert len(found) > 25
    for name, fields in found.items():
        assert {field for field, info in known[name].items() if info.is_required()} - fields == set(), name
        assert fields - known[name].keys() == set(), name


def test_a_session_starts_with_its_settings(voiced: Served) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            began = client.events[0].session
            assert (began.model, began.output_modalities, began.max_output_tokens) == ("tiny", ["audio"], "inf")
            turns = began.audio.input.turn_detection
            assert (turns.type, turns.threshold, turns.silence_duration_ms) == ("server_vad", 0.5, 500)
            output = {"voice": "marin", "format": {"type": "audio/pcm", "rate": 24000}}
            after = await client.update(instructions="be kind", audio={"output": output})
            assert (after.instructions, after.audio.output.voice) == ("be kind", "marin")
            assert after.audio.input.turn_detection == turns

    asyncio.run(main())


def test_a_text_is_answered_by_voice(voiced: Served) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            await client.manual(instructions="be kind")
            await client.say("hello")
            response = await client.respond()
            text = "be kind|hello"
            assert response.status == "completed"
            assert client.text("response.output_audio_transcript.delta") == text
            assert client.of("response.output_audio_transcript.done")[0].transcript == text
            assert len(client.sound()) == 3 * SAMPLES * len(text)
            assert [part.transcript for part in response.output[0].content] == [text]
            usage = response.usage
            assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (13, 13, 26)

    asyncio.run(main())


def test_events_of_a_response_come_in_order(voiced: Served) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            await client.manual()
            before = await client.say("hi")
            await client.respond(metadata={"a": "b"})
            kinds = [event.type for event in client.events]
            first = kinds.index("response.created")
            deltas = ("response.output_audio.delta", "response.output_audio_transcript.delta")
            assert [kind for kind in kinds[first:] if kind not in deltas] == [
                "response.created",
                "response.output_item.added",
                "conversation.item.added",
                "response.content_part.added",
                "response.output_audio.done",
                "response.output_audio_transcript.done",
                "response.content_part.done",
                "response.output_item.done",
                "conversation.item.done",
                "response.done",
            ]
            assert len({event.event_id for event in client.events}) == len(kinds)
            assert client.of("conversation.item.added")[-1].previous_item_id == before.id
            assert client.events[-1].response.metadata == {"a": "b"}

    asyncio.run(main())


def test_an_answer_may_be_text_alone(voiced: Served) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            await client.manual(output_modalities=["text"])
            await client.say("hello")
            response = await client.respond()
            assert response.output[0].content[0].text == "hello"
            assert client.text("response.output_text.delta") == "hello"
            assert not client.of("response.output_audio.delta")

    asyncio.run(main())


def test_a_committed_turn_is_heard_and_kept(voiced: Served) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            await client.manual()
            said = speech(0.5)
            for begin in range(0, len(said), 2400):
                await client.append(said[begin : begin + 2400])
            await client.send(type="input_audio_buffer.commit")
            committed = await client.until("input_audio_buffer.committed")
            await client.respond()
            # The model's sample rate is 16 kHz.
            assert client.text("response.output_audio_transcript.delta") == "<8000 samples>"
            await client.send(type="conversation.item.retrieve", item_id=committed.item_id)
            item = (await client.until("conversation.item.retrieved")).item
            np.testing.assert_array_equal(np.frombuffer(base64.b64decode(item.content[0].audio), "<i2"), said)

    asyncio.run(main())


def test_each_turn_follows_the_conversation_so_far(voiced: Served) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            await client.manual()
            await client.say("a")
            await client.respond()
            await client.say("c")
            await client.say("b", id="mine")
            await client.send(type="conversation.item.delete", item_id="mine")
            await client.until("conversation.item.deleted")
            first = {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "s"}]}
            await client.send(type="conversation.item.create", item=first, previous_item_id="root")
            await client.until("conversation.item.done")
            response = await client.respond()
            assert response.output[0].content[0].transcript == "s|a|a|c"

    asyncio.run(main())


def test_a_response_may_stand_beside_the_conversation(voiced: Served) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            await client.manual()
            said = await client.say("a")
            given = [
                {"type": "item_reference", "id": said.id},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
            ]
            beside = await client.respond(
                conversation="none", input=given, instructions="i", output_modalities=["text"]
            )
            assert (beside.output[0].content[0].text, beside.conversation_id) == ("i|a|x", None)
            kept = await client.respond()
            assert kept.output[0].content[0].transcript == "a"

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["audio/pcmu", "audio/pcma"])
def test_telephones_are_heard_and_answered(voiced: Served, kind: str) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            format = {"format": {"type": kind}}
            await client.update(audio={"input": {**format, "turn_detection": None}, "output": format})
            await client.send(type="input_audio_buffer.append", audio=base64.b64encode(b"\x80" * 800).decode())
            await client.send(type="input_audio_buffer.commit")
            response = await client.respond()
            assert response.output[0].content[0].transcript == "<1600 samples>"
            sent = [base64.b64decode(e.delta) for e in client.of("response.output_audio.delta")]
            assert sum(map(len, sent)) == SAMPLES * len("<1600 samples>")

    asyncio.run(main())


def test_sampling_and_voice_reach_the_model(voiced: Served) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            await client.manual()
            await client.say("hello")
            asked = {"temperature": 0.5, "top_k": 3, "max_output_tokens": 2}
            response = await client.respond(**asked, sampling={"singer": {"seed": 4}})
            assert (response.status, response.status_details.reason) == ("incomplete", "max_output_tokens")
            given = OPENED[-1].sampling
            assert (given.temperature, given.top_k, given.max_tokens) == (0.5, 3, 2)

    asyncio.run(main())


def _turn(client: Client, seconds: float = 0.6) -> Any:
    return client.append(np.concatenate([silence(0.6), speech(seconds), silence(0.9)]))


def test_the_server_finds_the_turns_of_the_user(voiced: Served) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            for piece in np.split(np.concatenate([silence(0.6), speech(0.6), silence(0.9)]), 70):
                await client.append(piece)
            response = (await client.until("response.done")).response
            [started], [stopped] = (client.of(f"input_audio_buffer.speech_{end}") for end in ("started", "stopped"))
            # 300 ms before the voice, and 500 ms after it.
            assert 200 <= started.audio_start_ms <= 450
            assert 1600 <= stopped.audio_end_ms <= 1900
            [committed] = client.of("input_audio_buffer.committed")
            assert started.item_id == stopped.item_id == committed.item_id
            heard = (stopped.audio_end_ms - started.audio_start_ms) * 16
            transcript = response.output[0].content[0].transcript
            assert transcript.endswith(" samples>")
            assert abs(int(transcript[1:-9]) - heard) <= 16
            await _turn(client)
            await client.until("response.done")
            starts = [event.audio_start_ms for event in client.of("input_audio_buffer.speech_started")]
            assert starts[1] - starts[0] == pytest.approx(2100, abs=60)

    asyncio.run(main())


def test_silence_and_clicks_are_no_turn(voiced: Served) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            clicks = silence(4.0)
            clicks[::24000] = 20000
            await client.append(clicks)
            await client.say("x")
            assert not client.of("input_audio_buffer.speech_started")
            # What no turn can start in is not kept.
            assert voiced.server.limits.held_bytes < 2 * 24000

    asyncio.run(main())


@pytest.mark.parametrize(("threshold", "turns"), [(0.2, 1), (1.0, 0)])
def test_a_higher_threshold_takes_a_longer_voice(voiced: Served, threshold: float, turns: int) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            await client.update(audio={"input": {"turn_detection": {"type": "server_vad", "threshold": threshold}}})
            await client.append(np.concatenate([silence(0.6), speech(0.04), silence(0.5)]))
            await client.say("x")
            assert len(client.of("input_audio_buffer.speech_started")) == turns

    asyncio.run(main())


@pytest.mark.parametrize(("eagerness", "turns"), [("high", 1), ("medium", 0), ("low", 0)])
def test_an_eager_session_takes_a_shorter_silence_for_the_end(voiced: Served, eagerness: str, turns: int) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            asked = {"type": "semantic_vad", "eagerness": eagerness, "create_response": False}
            after = await client.update(audio={"input": {"turn_detection": asked}})
            found = after.audio.input.turn_detection
            assert (found.type, found.eagerness, found.interrupt_response) == ("semantic_vad", eagerness, True)
            await client.append(np.concatenate([silence(0.6), speech(0.6), silence(0.7)]))
            await client.say("x")
            assert len(client.of("input_audio_buffer.speech_started")) == 1
            assert len(client.of("input_audio_buffer.speech_stopped")) == turns

    asyncio.run(main())


def test_turns_may_be_found_without_an_answer(voiced: Served) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            turns = {
                "type": "server_vad",
                "create_response": False,
                "silence_duration_ms": 200,
                "idle_timeout_ms": None,
            }
            await client.update(audio={"input": {"turn_detection": turns}})
            await _turn(client)
            await client.until("input_audio_buffer.committed")
            await client.say("x")
            assert not client.of("response.created")

    asyncio.run(main())


async def _talking(client: Client, **session: Any) -> str:
    """An endless answer is under way, and `HEARD_SECONDS` of it have arrived; its item."""
    await client.update(**ENDLESS, **session)
    await client.say("hello world, how are you")
    await client.send(type="response.create")
    item_id = str((await client.until("response.output_audio.delta")).item_id)
    while len(client.sound()) < HEARD_SECONDS * PCM_RATE:
        await client.until("response.output_audio.delta")
    return item_id


def test_speech_of_the_user_ends_the_answer(voiced: Served) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            item_id = await _talking(client)
            assert voiced.server.limits.in_flight == 1
            await client.append(np.concatenate([silence(0.3), speech(0.4)]))
            await client.until("input_audio_buffer.speech_started")
            response = (await client.until("response.done")).response
            assert (response.status, response.status_details.reason) == ("cancelled", "turn_detected")
            assert response.output[0].status == "incomplete"
            assert voiced.server.limits.in_flight == 0
            assert eventually(lambda: voiced.omni.idle)
            heard_ms = round(1000 * HEARD_SECONDS)
            await client.send(
                type="conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=heard_ms
            )
            await client.until("conversation.item.truncated")
            await client.update(max_output_tokens=200)
            await client.append(silence(1.0))
            done = (await client.until("response.done")).response
            # 0.3 s of speech are at most six characters.
            assert done.output[0].content[0].transcript.startswith("hello world, how are you|hello|<")

    asyncio.run(main())


def test_a_new_answer_waits_for_one_that_goes_on(voiced: Served) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            turns = {"type": "server_vad", "interrupt_response": False}
            await _talking(client, audio={"input": {"turn_detection": turns}})
            await _turn(client)
            await client.until("input_audio_buffer.committed")
            await client.update(max_output_tokens=5)
            assert not client.of("response.done")
            await client.send(type="response.cancel")
            assert (await client.until("response.done")).response.status_details.reason == "client_cancelled"
            assert (await client.until("response.done")).response.status == "incomplete"

    asyncio.run(main())


def test_truncation_keeps_the_played_part(voiced: Served) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            await client.manual(output_modalities=["audio"])
            await client.say("one two three four")
            item = (await client.respond()).output[0]
            # Ten ms a letter; the third word was played in part.
            await client.send(type="conversation.item.truncate", item_id=item.id, content_index=0, audio_end_ms=105)
            event = await client.until("conversation.item.truncated")
            assert (event.item_id, event.audio_end_ms) == (item.id, 105)
            await client.send(type="conversation.item.retrieve", item_id=item.id)
            kept = (await client.until("conversation.item.retrieved")).item
            assert kept.content[0].transcript == "one two"
            response = await client.respond()
            assert response.output[0].content[0].transcript == "one two three four|one two"
            wrong = await client.wrong(
                type="conversation.item.truncate", item_id=item.id, content_index=0, audio_end_ms=106, event_id="late"
            )
            assert (wrong.param, wrong.event_id) == ("audio_end_ms", "late")

    asyncio.run(main())


def test_an_answer_under_way_is_truncated_too(voiced: Served) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            item_id = await _talking(client)
            await client.send(type="conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=0)
            await client.until("conversation.item.truncated")
            assert client.of("response.done")[0].response.status == "cancelled"
            await client.update(max_output_tokens="inf", instructions=None)
            response = await client.respond()
            assert response.output[0].content[0].transcript == "hello world, how are you"

    asyncio.run(main())


def test_a_cancelled_response_frees_its_request(voiced: Served) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            await _talking(client)
            busy = await client.wrong(type="response.create", event_id="second")
            assert (busy.code, busy.event_id) == ("conversation_already_has_active_response", "second")
            await client.send(type="response.cancel", response_id=client.of("response.created")[0].response.id)
            response = (await client.until("response.done")).response
            assert (response.status, response.status_details.reason) == ("cancelled", "client_cancelled")
            # Of the prompt, a token for each character, and the text so far.
            usage = response.usage
            assert usage.input_tokens == len("hello world, how are you")
            assert usage.output_tokens == usage.output_token_details.text_tokens > 0
            assert usage.total_tokens == usage.input_tokens + usage.output_tokens
            assert voiced.server.limits.in_flight == 0
            assert (await client.wrong(type="response.cancel")).code == "response_cancel_not_active"

    asyncio.run(main())


def test_sound_is_resampled_to_the_rate_of_events(voiced: Served) -> None:
    async def main() -> None:
        async with session(voiced) as client:
            await client.manual()
            await client.say("hello")
            await client.respond()
            sung = np.repeat(np.array([pitch(letter) for letter in "hello"], np.float32), SAMPLES)
            expected = soxr.resample(sung, RATE, 24000)
            np.testing.assert_allclose(client.sound() / 32767, expected, atol=1e-4)

    asyncio.run(main())
