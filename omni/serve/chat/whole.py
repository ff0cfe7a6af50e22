"""An answer in one piece."""

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping

import torch

from omni.api import Output, TokenLogprob
from omni.serve.audio.encoded_sound import EncodedSound
from omni.serve.audio.encoder_pool import EncoderPool
from omni.serve.chat.request import ChatCall
from omni.serve.chat.response import AnswerMessage, Audio, ChatCompletion, Choice
from omni.serve.logprobs import choice_logprobs
from omni.serve.server import Server
from omni.serve.usage import finish_reason, token_usage


class _Answer:
    """One answer so far."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.sound: list[torch.Tensor] = []
        self.sample_rate = 0
        self.logprobs: list[TokenLogprob] = []
        self.reasons: Mapping[str, str] = {}
        self.last: Output | None = None

    def take(self, output: Output) -> None:
        self.texts.append(output.text)
        if output.audio is not None and output.sample_rate is not None:
            self.sound.append(output.audio)
            self.sample_rate = output.sample_rate
        self.logprobs += output.logprobs
        if output.finished:
            self.reasons, self.last = output.finish_reasons, output

    async def file(self, format: str, pool: EncoderPool) -> str:
        """Returns the sound as a file in base64."""
        if not self.sound:
            return ""
        encoded = EncodedSound(format, pool, whole=True)
        data = await encoded.push(torch.cat(self.sound), self.sample_rate) + await encoded.finish()
        return (await asyncio.to_thread(base64.b64encode, data)).decode()


async def completion(server: Server, call: ChatCall, outputs: AsyncIterator[Output]) -> ChatCompletion:
    answers = [_Answer() for _ in range(call.samples)]
    async for output in outputs:
        answers[output.sample].take(output)
    return ChatCompletion(
        id=call.id,
        created=call.created,
        model=call.model,
        choices=[await _choice(server, call, index, answer) for index, answer in enumerate(answers)],
        usage=token_usage([each.last for each in answers if each.last is not None], server.omni.pipeline),
    )


async def _choice(server: Server, call: ChatCall, index: int, answer: _Answer) -> Choice:
    text = "".join(answer.texts)
    if call.format is None:
        message = AnswerMessage(content=text)
    else:
        audio_id = server.transcripts.new_id()
        data = await answer.file(call.format, server.encoders)
        expires_at = server.transcripts.keep(audio_id, text)
        audio = Audio(id=audio_id, data=data, expires_at=expires_at, transcript=text)
        message = AnswerMessage(content=None, audio=audio)
    logprobs = choice_logprobs(server.omni, answer.logprobs) if call.logprobs else None
    reason = finish_reason(answer.reasons, call.stage)
    return Choice(index=index, message=message, finish_reason=reason, logprobs=logprobs)
