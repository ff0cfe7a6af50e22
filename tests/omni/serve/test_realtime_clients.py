"""LiveKit's and Pipecat's realtime services, unchanged, against a server. They are in the extra `clients`."""

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni import AsyncOmni
from tests.omni.serve.http_server import STRICT, Served, echo_omni, served
from tests.omni.serve.realtime import silence, speech
from tests.support.echo_family import SAMPLES
from tests.support.patience import PATIENCE_SECONDS
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_omni import SHAPE, tiny_plugins

pytestmark = [
    pytest.mark.clients,
    # Their own, and those of what they import.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def voiced(echo_folder: Path) -> Iterator[Served]:
    with served(echo_omni(echo_folder)) as it:
        yield it


@pytest.fixture(scope="module")
def talker() -> Iterator[Served]:
    """A tiny Qwen3-Omni: its speech and its text end at their limits."""
    limits: dict[str, object] = {
        **STRICT,
        "talker.sampling.max_tokens": 21,
        "talker.sampling.temperature": 0.0,
        "thinker.sampling.max_tokens": 8,
        "thinker.sampling.temperature": 0.0,
    }
    folder = tiny_checkpoint(3, max_positions=256, **SHAPE)
    with served(AsyncOmni(folder, device="cpu", plugins=tiny_plugins(), overrides=limits)) as it:
        yield it


def answered(it: Served, text: str) -> tuple[str, int]:
    """The answer to a text through the SDK, and its samples at 24 kHz."""
    messages: Any = [{"role": "system", "content": "be kind"}, {"role": "user", "content": text}]
    audio: Any = {"voice": "marin", "format": "pcm16"}
    with it.client() as client:
        answer = client.chat.completions.create(
            model="tiny", messages=messages, modalities=["text", "audio"], audio=audio
        )
    said = answer.choices[0].message.audio
    assert said is not None
    return said.transcript, len(base64.b64decode(said.data)) // 2


def livekit_talk(server: Served) -> tuple[tuple[str, int], str, tuple[str, int]]:
    """The answer to a turn that the server finds, its transcript, and the answer to "hello", which the program asks for. Of
    answers, the text and the number of samples."""
    from livekit import rtc
    from livekit.agents import llm, utils
    from livekit.plugins import openai

    async def spoken(generation: Any) -> tuple[str, int]:
        text, samples = "", 0
        async for message in generation.message_stream:
            async for piece in message.text_stream:
                text += piece
            async for frame in message.audio_stream:
                samples += frame.samples_per_channel
        return text, samples

    async def main() -> tuple[tuple[str, int], str, tuple[str, int]]:
        async with utils.http_context.open(), asyncio.timeout(PATIENCE_SECONDS):
            model = openai.realtime.RealtimeModel(
                model="tiny",
                voice="marin",
                base_url=f"{server.url}/v1",
                api_key="x",
            )
            session = model.session()
            made: asyncio.Queue[Any] = asyncio.Queue()
            errors: list[Any] = []
            session.on("generation_created", made.put_nowait)
            heard: asyncio.Queue[Any] = asyncio.Queue()
            session.on("input_audio_transcription_completed", heard.put_nowait)
            session.on("error", errors.append)
            await session.update_instructions("be kind")
            # Its default are semantic turns, which a longer silence ends.
            sound = np.concatenate([silence(0.6), speech(0.6), silence(1.5)])
            for piece in np.split(sound, 90):
                session.push_audio(rtc.AudioFrame(piece.tobytes(), 24000, 1, len(piece)))
            first = await spoken(await made.get())
            while not (transcript := await heard.get()).is_final:
                pass
            context = llm.ChatContext.empty()
            context.add_message(role="user", content="hello")
            await session.update_chat_ctx(context)
            second = await spoken(await session.generate_reply())
            await session.aclose()
            await model.aclose()
            assert not errors
            return first, transcript.transcript, second

    return asyncio.run(main())


def test_livekit_talks(voiced: Served) -> None:
    (text, samples), transcript, (second, _) = livekit_talk(voiced)
    assert text.startswith("be kind|<")
    assert samples == 3 * SAMPLES * len(text)
    assert "Transcribe the speech." in transcript
    assert second == "be kind|hello"


def test_livekit_talks_to_a_tiny_model(talker: Served) -> None:
    (text, samples), transcript, second = livekit_talk(talker)
    expected = answered(talker, "hello")
    assert second == expected
    assert samples == expected[1] > 0
    assert text
    assert transcript


def pipecat_talk(server: Served) -> tuple[str, int]:
    """The answer to a turn that the server finds: its text and the number of samples."""
    from pipecat.frames.frames import (
        EndFrame,
        Frame,
        InputAudioRawFrame,
        LLMFullResponseEndFrame,
        TTSAudioRawFrame,
        TTSTextFrame,
    )
    from pipecat.pipeline.pipeline import Pipeline
    from pipecat.pipeline.runner import PipelineRunner
    from pipecat.pipeline.task import PipelineTask
    from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
    from pipecat.services.openai.realtime import events
    from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService

    texts: list[str] = []
    samples: list[int] = []
    over = asyncio.Event()

    class Sink(FrameProcessor):  # type: ignore[misc]
        async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
            await super().process_frame(frame, direction)
            if isinstance(frame, TTSTextFrame):
                texts.append(frame.text)
            if isinstance(frame, TTSAudioRawFrame):
                samples.append(len(frame.audio) // 2)
            if isinstance(frame, LLMFullResponseEndFrame):
                over.set()
            await self.push_frame(frame, direction)

    async def main() -> None:
        properties = events.SessionProperties(
            instructions="be kind",
            audio=events.AudioConfiguration(input=events.AudioInput(turn_detection=events.TurnDetection())),
        )
        service = OpenAIRealtimeLLMService(
            api_key="x",
            base_url=f"{server.url.replace('http', 'ws')}/v1/realtime",
            settings=OpenAIRealtimeLLMService.Settings(model="tiny", session_properties=properties),
        )
        task = PipelineTask(Pipeline([service, Sink()]), cancel_on_idle_timeout=False)
        running = asyncio.create_task(PipelineRunner(handle_sigint=False).run(task))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not service._api_session_ready:
                await asyncio.sleep(0.01)
            sound = np.concatenate([silence(0.6), speech(0.6), silence(0.9)])
            for piece in np.split(sound, 70):
                await task.queue_frame(InputAudioRawFrame(piece.tobytes(), 24000, 1))
            await over.wait()
            await task.queue_frame(EndFrame())
            await running

    asyncio.run(main())
    return "".join(texts), sum(samples)


def test_pipecat_talks(voiced: Served) -> None:
    text, samples = pipecat_talk(voiced)
    assert text.startswith("be kind|<")
    assert samples == 3 * SAMPLES * len(text)


def test_pipecat_talks_to_a_tiny_model(talker: Served) -> None:
    text, samples = pipecat_talk(talker)
    assert text
    assert samples == answered(talker, "hello")[1] > 0
