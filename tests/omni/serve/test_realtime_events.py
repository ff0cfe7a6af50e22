"""Wrong events of realtime sessions: each is refused by name, and the session goes on."""

import asyncio
from typing import Any

import pytest

from tests.omni.serve.http_server import Served
from tests.omni.serve.realtime import item_create, session, session_update, silence
from tests.support.echo_family import BREAK


def _ratio(**limits: Any) -> dict[str, Any]:
    return {"type": "retention_ratio", "retention_ratio": 0.5, "token_limits": limits}


def _input(**fields: Any) -> dict[str, Any]:
    return session_update(instructions="lost", audio={"input": fields})


def _part(**part: Any) -> dict[str, Any]:
    return item_create(content=[part])


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "nonsense"}, "type", "'nonsense' is not known here; use one of session.update, "),
    ({"type": ["session.update"]}, "type", "not known here"),
    ({"colour": 1}, "type", "missing"),
    ({"type": "input_audio_buffer.append"}, "audio", "missing"),
    ({"type": "input_audio_buffer.append", "audio": "###"}, "audio", "base64"),
    ({"type": "input_audio_buffer.append", "audio": "AAAA"}, "audio", "whole number"),
    ({"type": "input_audio_buffer.commit"}, "input_audio_buffer", "less than 100 ms"),
    ({"type": "input_audio_buffer.clear", "all": True}, "all", "not known"),
    (session_update(tools=[{"type": "function"}]), "session.tools", "not supported"),
    (session_update(tool_choice="required"), "session.tool_choice", "not supported"),
    (session_update(truncation="newest"), "session.truncation", 'use "auto"'),
    (session_update(truncation=7), "session.truncation", 'use "auto"'),
    (session_update(truncation={"type": "retention_ratio"}), "session.truncation.retention_ratio", "missing"),
    (
        session_update(truncation={"type": "retention_ratio", "retention_ratio": 1.5}),
        "session.truncation.retention_ratio",
        "out of range",
    ),
    (
        session_update(truncation=_ratio(post_instructions=0)),
        "session.truncation.token_limits.post_instructions",
        "use at least 1",
    ),
    (session_update(truncation=_ratio(words=3)), "session.truncation.token_limits.words", "not known"),
    (session_update(colour=1), "session.colour", "not known"),
    (session_update(type="transcription"), "session.type", "not supported"),
    (session_update(output_modalities=["text", "audio"]), "session.output_modalities", "transcript"),
    (session_update(max_output_tokens=0), "session.max_output_tokens", "out of range"),
    (session_update(max_output_tokens=2**31), "session.max_output_tokens", "out of range"),
    (session_update(temperature=-1), "session.temperature", "out of range"),
    (session_update(sampling={"nobody": {}}), "session.sampling.nobody", "not a stage"),
    (session_update(model="gpt"), "model", "not served"),
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
    (session_update(audio={"output": {"voice": "nobody"}}), "session.audio.output.voice", "unknown"),
    (session_update(audio={"output": {"speed": 1.5}}), "session.audio.output.speed", "not supported"),
    (item_create(type="function_call_output"), "item.type", "not supported"),
    (item_create(role="robot"), "item.role", "unknown"),
    (item_create(content=[]), "item.content", "empty"),
    (_part(type="output_text", text="x"), "item.content[0].type", "user"),
    (_part(type="input_text"), "item.content[0].text", "missing"),
    (_part(type="input_audio", audio="AAAA"), "item.content[0].audio", "whole number"),
    ({**item_create(), "previous_item_id": "nobody"}, "previous_item_id", "not an item"),
    ({"type": "conversation.item.retrieve", "item_id": "nobody"}, "item_id", "not an item"),
    ({"type": "conversation.item.delete", "item_id": "nobody"}, "item_id", "not an item"),
    (
        {"type": "conversation.item.truncate", "item_id": "mine", "content_index": 0, "audio_end_ms": 0},
        "item_id",
        "assistant",
    ),
    (item_create(id="mine"), "item.id", "taken"),
    ({"type": "response.create", "response": {"tools": [{"type": "mcp"}]}}, "response.tools", "not supported"),
    ({"type": "response.create", "response": {"conversation": "other"}}, "response.conversation", "unknown"),
    ({"type": "response.create", "response": {"cache_salt": "x"}}, "response.cache_salt", "not known"),
    (
        {"type": "response.create", "response": {"input": [{"type": "item_reference"}]}},
        "response.input[0].id",
        "not an item",
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


def test_a_failed_answer_is_reported_and_the_session_continues(tidy: Served) -> None:
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
