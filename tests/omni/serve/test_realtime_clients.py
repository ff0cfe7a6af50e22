"""LiveKit's and Pipecat's realtime services, unchanged, against a server. They are in the extra `clients`."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.echo_family import SAMPLES
from tests.support.http_server import Served, echo_omni, served
from tests.support.patience import PATIENCE_SECONDS
from tests.support.realtime import silence, speech

pytestmark = [
    pytest.mark.clients,
    # Their own, and those of what they import.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def voiced(echo_folder: Path) -> Iterator[Served]:
    with served(echo_omni(echo_folder)) as it:
        yield it


def test_livekit_talks(voiced: Served) -> None:
    """A turn that the server finds, then one that the program asks for."""
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

    async def main() -> None:
        async with utils.http_context.open(), asyncio.timeout(PATIENCE_SECONDS):
            model = openai.realtime.RealtimeModel(
                model="tiny",
                voice="marin",
                base_url=f"{voiced.url}/v1",
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
            text, samples = await spoken(await made.get())
            assert text.startswith("be kind|<")
            assert samples == 3 * SAMPLES * len(text)
            while not (transcript := await heard.get()).is_final:
                pass
            assert "Transcribe the speech." in transcript.transcript
            context = llm.ChatContext.empty()
            context.add_message(role="user", content="hello")
            await session.update_chat_ctx(context)
            text, _ = await spoken(await session.generate_reply())
            assert text == "be kind|hello"
            await session.aclose()
            await model.aclose()
            assert not errors

    asyncio.run(main())


def test_pipecat_talks(voiced: Served) -> None:
    """A turn that the server finds."""
    from pipecat.frames.frames import EndFrame, Frame, InputAudioRawFrame, TTSAudioRawFrame, TTSTextFrame
    from pipecat.pipeline.pipeline import Pipeline
    from pipecat.pipeline.runner import PipelineRunner
    from pipecat.pipeline.task import PipelineTask
    from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
    from pipecat.services.openai.realtime import events
    from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService

    texts: list[str] = []
    samples: list[int] = []

    class Sink(FrameProcessor):  # type: ignore[misc]
        async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
            await super().process_frame(frame, direction)
            if isinstance(frame, TTSTextFrame):
                texts.append(frame.text)
            if isinstance(frame, TTSAudioRawFrame):
                samples.append(len(frame.audio) // 2)
            await self.push_frame(frame, direction)

    async def main() -> None:
        properties = events.SessionProperties(
            instructions="be kind",
            audio=events.AudioConfiguration(input=events.AudioInput(turn_detection=events.TurnDetection())),
        )
        service = OpenAIRealtimeLLMService(
            api_key="x",
            base_url=f"{voiced.url.replace('http', 'ws')}/v1/realtime",
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
            while not "".join(texts).endswith("samples>"):
                await asyncio.sleep(0.01)
            await task.queue_frame(EndFrame())
            await running

    asyncio.run(main())
    text = "".join(texts)
    assert text.startswith("be kind|<")
    assert sum(samples) == 3 * SAMPLES * len(text)
