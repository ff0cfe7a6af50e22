"""An answer in pieces."""

from collections.abc import AsyncGenerator

from omni.api import Output
from omni.serve.chat.request import ChatCall
from omni.serve.chat.response import ChatCompletionChunk, ChunkChoice, Delta, DeltaAudio
from omni.serve.chat.speech import AnswerSound
from omni.serve.limits import AnswerSlots
from omni.serve.logprobs import choice_logprobs
from omni.serve.responses import DONE, event
from omni.serve.server import Server
from omni.serve.usage import TokenUsage, finish_reason, token_usage


async def events(server: Server, call: ChatCall, slots: AnswerSlots) -> AsyncGenerator[bytes]:
    """The events of the whole stream. Runs the request from the first one on. slots: of its answers."""
    answers = [_Answer(server, call, index) for index in range(call.samples)]
    finished: list[Output] = []
    async with server.generate("chat", call.messages, call.rename, slots=slots, **call.arguments) as outputs:
        async for output in outputs:
            if output.finished:
                finished.append(output)
            for choice in await answers[output.sample].take(output):
                yield event(_chunk(call, [choice]))
    if call.include_usage:
        yield event(_chunk(call, [], token_usage(finished, server.omni.pipeline)))
    yield DONE


def _chunk(call: ChatCall, choices: list[ChunkChoice], usage: TokenUsage | None = None) -> ChatCompletionChunk:
    chunk = ChatCompletionChunk(id=call.id, created=call.created, model=call.model, choices=choices)
    if not call.include_usage:
        return chunk
    return ChatCompletionChunk(id=call.id, created=call.created, model=call.model, choices=choices, usage=usage)


class _Answer:
    """The chunks of one answer."""

    def __init__(self, server: Server, call: ChatCall, index: int) -> None:
        self._server = server
        self._call = call
        self._index = index
        self._begun = False
        self._texts: list[str] = []
        self._sound = AnswerSound(call.format, server.encoders) if call.format is not None else None
        self._audio_id = server.transcripts.new_id() if self._sound is not None else None

    async def take(self, output: Output) -> list[ChunkChoice]:
        choices: list[ChunkChoice] = []
        if not self._begun:
            self._begun = True
            choices.append(self._first())
        if output.text:
            choices.append(self._text(output.text))
        if output.audio is not None and output.sample_rate is not None and self._sound is not None:
            choices += self._data(await self._sound.push(output.audio, output.sample_rate))
        if output.logprobs and self._call.logprobs:
            scores = choice_logprobs(self._server.omni, output.logprobs)
            choices.append(ChunkChoice(index=self._index, delta=Delta(), logprobs=scores))
        if output.finished:
            choices += await self._last(output)
        return choices

    def _first(self) -> ChunkChoice:
        if self._audio_id is None:
            return self._choice(Delta(role="assistant", content=""))
        return self._choice(Delta(role="assistant", audio=DeltaAudio(id=self._audio_id, transcript="")))

    def _text(self, text: str) -> ChunkChoice:
        if self._sound is None:
            return self._choice(Delta(content=text))
        self._texts.append(text)
        return self._choice(Delta(audio=DeltaAudio(transcript=text)))

    def _data(self, data: str) -> list[ChunkChoice]:
        return [self._choice(Delta(audio=DeltaAudio(data=data)))] if data else []

    async def _last(self, output: Output) -> list[ChunkChoice]:
        choices: list[ChunkChoice] = []
        if self._sound is not None and self._audio_id is not None:
            choices += self._data(await self._sound.finish())
            expires_at = self._server.transcripts.keep(self._audio_id, "".join(self._texts))
            choices.append(self._choice(Delta(audio=DeltaAudio(expires_at=expires_at))))
        reason = finish_reason(output.finish_reasons, self._call.stage)
        return [*choices, ChunkChoice(index=self._index, delta=Delta(), finish_reason=reason)]

    def _choice(self, delta: Delta) -> ChunkChoice:
        return ChunkChoice(index=self._index, delta=delta)
