"""LiveKit's and Pipecat's services, unchanged, against a tiny model. They are in the extra `clients`: `make clients`."""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from openai import DefaultAsyncHttpxClient

from omni import AsyncOmni
from omni.serve.audio.encode import FORMATS
from tests.omni.serve.http_server import STRICT, Served, served
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_omni import SHAPE, tiny_plugins

pytestmark = [
    pytest.mark.clients,
    # Their own, and those of what they import.
    pytest.mark.filterwarnings("ignore"),
]

TEXT = "Five boxing wizards jump."
FRAMES = 20


@pytest.fixture(scope="module")
def talker() -> Iterator[Served]:
    """Its speech and its text end at their limits."""
    limits: dict[str, object] = {
        **STRICT,
        "talker.sampling.max_tokens": FRAMES + 1,
        "talker.sampling.temperature": 0.0,
        "thinker.sampling.max_tokens": 8,
    }
    folder = tiny_checkpoint(3, max_positions=256, **SHAPE)
    with served(AsyncOmni(folder, device="cpu", plugins=tiny_plugins(), overrides=limits)) as it:
        yield it


def whole(it: Served) -> np.ndarray:
    """The same speech, through the SDK."""
    with it.client() as client:
        answer = client.audio.speech.create(model="tiny", voice="alloy", input=TEXT, response_format="pcm")
    return np.frombuffer(answer.content, "<i2")


@pytest.mark.parametrize("format", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
def test_livekit_speaks(talker: Served, format: Any) -> None:
    """It asks for events, and decodes the file in them."""
    from livekit.agents import utils
    from livekit.plugins import openai

    async def main() -> tuple[list[Any], Any]:
        async with utils.http_context.open():
            tts = openai.TTS(
                model="tiny", voice="alloy", base_url=f"{talker.url}/v1", api_key="x", response_format=format
            )
            spoken: list[Any] = []
            tts.on("metrics_collected", spoken.append)
            async with tts.synthesize(TEXT) as stream:
                events = [event async for event in stream]
            await tts.aclose()
            return [event.frame for event in events], spoken

    frames, metrics = asyncio.run(main())
    assert {frame.sample_rate for frame in frames} == {24000}
    seconds = sum(frame.duration for frame in frames)
    expected = len(whole(talker)) / 24000
    assert abs(seconds - expected) < 0.15
    assert metrics[-1].output_tokens == FRAMES + 1
    if format in ("wav", "pcm", "flac"):
        samples = np.concatenate([np.frombuffer(frame.data, np.int16) for frame in frames])
        said = whole(talker)
        # Its decoder drops the first frame of each flac file, one of libsndfile too. Its last frame may end in silence.
        said = said[len(said) - len(samples) :] if format == "flac" else said
        np.testing.assert_allclose(samples[: len(said)], said, atol=2)
        assert not samples[len(said) :].any()


def test_livekit_hears(talker: Served) -> None:
    from livekit import rtc
    from livekit.agents import utils
    from livekit.plugins import openai

    async def main() -> str:
        async with utils.http_context.open(), talker.async_client() as client:
            stt = openai.STT(model="tiny", client=client, use_realtime=False)
            samples = (np.sin(np.arange(16000) / 8) * 10000).astype(np.int16)
            event = await stt.recognize(rtc.AudioFrame(samples.tobytes(), 16000, 1, len(samples)))
            return str(event.alternatives[0].text)

    assert asyncio.run(main())


def test_pipecat_speaks(talker: Served) -> None:
    from pipecat.frames.frames import ErrorFrame, TTSAudioRawFrame, TTSSpeakFrame
    from pipecat.services.openai.tts import OpenAITTSService
    from pipecat.tests.utils import run_test

    async def main() -> list[Any]:
        async with DefaultAsyncHttpxClient() as http:
            tts = OpenAITTSService(
                api_key="x",
                base_url=f"{talker.url}/v1",
                http_client=http,
                sample_rate=24000,
                settings=OpenAITTSService.Settings(model="tiny", voice="alloy"),
            )
            down, up = await run_test(tts, frames_to_send=[TTSSpeakFrame(TEXT)])
            return [*down, *up]

    frames = asyncio.run(main())
    assert not [frame for frame in frames if isinstance(frame, ErrorFrame)]
    audio = b"".join(frame.audio for frame in frames if isinstance(frame, TTSAudioRawFrame))
    expected = whole(talker)
    np.testing.assert_array_equal(np.frombuffer(audio, "<i2")[: len(expected)], expected)


def test_pipecat_hears(talker: Served) -> None:
    from pipecat.frames.frames import TranscriptionFrame
    from pipecat.services.openai.stt import OpenAISTTService

    async def main() -> list[Any]:
        encoder = FORMATS["wav"].whole(16000)
        wav = encoder.push(np.sin(np.arange(16000) / 8).astype(np.float32)) + encoder.finish()
        async with DefaultAsyncHttpxClient() as http:
            stt = OpenAISTTService(
                api_key="x",
                base_url=f"{talker.url}/v1",
                http_client=http,
                settings=OpenAISTTService.Settings(model="tiny"),
            )
            return [frame async for frame in stt.run_stt(wav)]

    frames = asyncio.run(main())
    assert [type(frame) for frame in frames] == [TranscriptionFrame]
    assert frames[0].text


QUESTION = "How vexingly quick?"


def written(it: Served) -> str:
    """The same answer, through the SDK."""
    with it.client() as client:
        messages: Any = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": QUESTION}]
        answer = client.chat.completions.create(model="tiny", messages=messages, temperature=0.0)
    return answer.choices[0].message.content or ""


def test_livekit_writes(talker: Served) -> None:
    from livekit.agents import llm, utils
    from livekit.plugins import openai

    async def main() -> tuple[str, Any]:
        async with utils.http_context.open():
            model = openai.LLM(model="tiny", base_url=f"{talker.url}/v1", api_key="x", temperature=0.0)
            context = llm.ChatContext.empty()
            context.add_message(role="system", content="Be kind.")
            context.add_message(role="user", content=QUESTION)
            text, usage = "", None
            async with model.chat(chat_ctx=context) as stream:
                async for chunk in stream:
                    text += (chunk.delta and chunk.delta.content) or ""
                    usage = chunk.usage or usage
            await model.aclose()
            return text, usage

    text, usage = asyncio.run(main())
    assert text == written(talker) != ""
    assert usage.completion_tokens == 8


def test_pipecat_writes(talker: Served) -> None:
    from pipecat.frames.frames import ErrorFrame, LLMContextFrame, LLMTextFrame
    from pipecat.processors.aggregators.llm_context import LLMContext
    from pipecat.services.openai.llm import OpenAILLMService
    from pipecat.tests.utils import run_test

    async def main() -> list[Any]:
        settings = OpenAILLMService.Settings(model="tiny", temperature=0.0, system_instruction="Be kind.")
        service = OpenAILLMService(api_key="x", base_url=f"{talker.url}/v1", settings=settings)
        context = LLMContext([{"role": "user", "content": QUESTION}])
        async with service._client:
            down, up = await run_test(service, frames_to_send=[LLMContextFrame(context)])
        return [*down, *up]

    frames = asyncio.run(main())
    assert not [frame for frame in frames if isinstance(frame, ErrorFrame)]
    assert "".join(frame.text for frame in frames if isinstance(frame, LLMTextFrame)) == written(talker) != ""
