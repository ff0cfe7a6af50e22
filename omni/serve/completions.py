"""`POST /v1/completions`: continues a raw prompt, for families that accept prompts without the chat template."""

import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from omni.api import GenerateArguments, Output, TokenLogprob
from omni.errors import InputError, counted
from omni.serve.body import Call, convert, split_sampling
from omni.serve.errors import Rename
from omni.serve.limits import AnswerSlots
from omni.serve.logprobs import finite, token_text
from omni.serve.models import check_model
from omni.serve.responses import DONE, event, event_stream, json_response
from omni.serve.sampling import names_in_body, samples_of, stage_sampling
from omni.serve.server import Server
from omni.serve.unsupported import without_unsupported
from omni.serve.usage import TokenUsage, finish_reason, token_usage

_MAX_TOKENS = 16
"""The default of `max_tokens` in OpenAI's API."""
_MAX_ANSWERS = 2048
"""Maximum number of answers to all prompts of a request. Each takes time on the event loop before the request is queued."""


class CompletionStreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields beside sampling parameters of omni, which may be in the body too."""

    model: str
    prompt: str | tuple[str, ...]
    n: int | None = None
    stream: bool | None = None
    stream_options: CompletionStreamOptions | None = None
    logprobs: int | None = None
    priority: int = 0
    cache_salt: str = ""


class Logprobs(msgspec.Struct, frozen=True, kw_only=True):
    """text_offset: where in the answer each token begins, in characters."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    text: str
    finish_reason: str | None
    logprobs: Logprobs | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer, or a piece of a stream, of which only the last has the usage."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: TokenUsage | UnsetType | None = UNSET
    object: str = "text_completion"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionCall:
    """A checked request. prompts: one of them is given to `generate` alone."""

    model: str
    prompts: tuple[str, ...]
    arguments: GenerateArguments
    rename: Rename
    stream: bool
    include_usage: bool
    logprobs: bool
    samples: int
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))


async def completions(server: Server, call: Call) -> Response:
    asked = read_call(server, await call.json())
    if asked.stream:
        return event_stream(_events(server, asked, call.slots), call.id, server.options.retry_after_seconds)
    answers = [_Answer(server, index) for index in range(len(asked.prompts) * asked.samples)]
    async with _outputs(server, asked, call.slots) as outputs:
        async for output in outputs:
            answers[_index(asked, output)].take(output)
    choices = [answer.piece(asked) for answer in answers]
    return json_response(_completion(asked, choices, _usage(server, answers)))


def read_call(server: Server, body: dict[str, Any]) -> CompletionCall:
    """Raises InputError, naming the body's field."""
    fields, params = split_sampling(without_unsupported(body), frozenset({"logprobs", "prompt_logprobs"}))
    if isinstance(fields.get("prompt"), list) and any(not isinstance(each, str) for each in fields["prompt"]):
        raise InputError("prompt", "has token ids", "give texts")
    request = convert(fields, CompletionRequest)
    check_model(server, request.model)
    omni = server.omni
    if omni.pipeline.text_stage is None:
        raise InputError("model", "writes no text", "use /v1/audio/speech or /v1/chat/completions")
    if not omni.takes_raw_prompts:
        raise InputError("model", "takes chats only", "use /v1/chat/completions")
    prompts = (request.prompt,) if isinstance(request.prompt, str) else request.prompt
    if not prompts:
        raise InputError("prompt", "is empty", "give a text")
    if request.stream_options is not None and not request.stream:
        raise InputError("stream_options", "is given without stream", "leave it out, or stream")
    params.setdefault("max_tokens", _MAX_TOKENS)
    samples = samples_of(request.n)
    # One answer per prompt, or several if `n` is given.
    names = {"messages": "prompt"} | ({"n": "prompt"} if samples == 1 else {})
    if len(prompts) * samples > _MAX_ANSWERS:
        problem = f"has {counted(len(prompts), 'text')}" + (f" with {samples} answers each" if samples > 1 else "")
        raise InputError("prompt", problem, f"ask for at most {_MAX_ANSWERS:,} answers in one request")
    return CompletionCall(
        model=request.model,
        prompts=prompts,
        arguments=GenerateArguments(
            modalities=("text",),
            sampling=stage_sampling(omni, params, {}, logprobs=request.logprobs),
            n=samples,
            priority=request.priority,
            cache_salt=request.cache_salt,
            raw_prompt=True,
        ),
        rename=names_in_body(omni, names),
        stream=bool(request.stream),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        logprobs=request.logprobs is not None,
        samples=samples,
    )


async def _events(server: Server, asked: CompletionCall, slots: AnswerSlots) -> AsyncGenerator[bytes]:
    none = None if asked.include_usage else UNSET
    answers = [_Answer(server, index) for index in range(len(asked.prompts) * asked.samples)]
    async with _outputs(server, asked, slots) as outputs:
        async for output in outputs:
            answer = answers[_index(asked, output)]
            answer.take(output)
            yield event(_completion(asked, [answer.piece(asked)], none))
    if asked.include_usage:
        yield event(_completion(asked, [], _usage(server, answers)))
    yield DONE


def _outputs(
    server: Server, asked: CompletionCall, slots: AnswerSlots
) -> AbstractAsyncContextManager[AsyncIterator[Output]]:
    many = len(asked.prompts) > 1
    prompts = list(asked.prompts) if many else asked.prompts[0]
    return server.generate(
        "completions", prompts, asked.rename, slots=slots, requests=len(asked.prompts), **asked.arguments
    )


def _index(asked: CompletionCall, output: Output) -> int:
    return output.index * asked.samples + output.sample


def _completion(
    asked: CompletionCall, choices: list[CompletionChoice], usage: TokenUsage | UnsetType | None
) -> Completion:
    return Completion(id=asked.id, created=asked.created, model=asked.model, choices=choices, usage=usage)


def _usage(server: Server, answers: Sequence["_Answer"]) -> TokenUsage:
    return token_usage([answer.last for answer in answers if answer.last is not None], server.omni.pipeline)


class _Answer:
    """An answer as it is streamed: each piece is the output since the last piece."""

    def __init__(self, server: Server, index: int) -> None:
        self.last: Output | None = None
        self._server = server
        self._index = index
        self._text = ""
        self._tokens: list[TokenLogprob] = []
        self._offset = 0
        self._reason: str | None = None

    def take(self, output: Output) -> None:
        self._text += output.text
        self._tokens += output.logprobs
        if output.finished:
            self.last = output
            self._reason = finish_reason(output.finish_reasons, self._server.omni.pipeline.text_stage)

    def piece(self, asked: CompletionCall) -> CompletionChoice:
        text, self._text = self._text, ""
        tokens, self._tokens = self._tokens, []
        logprobs = self._logprobs(tokens) if asked.logprobs and (tokens or not asked.stream) else None
        return CompletionChoice(index=self._index, text=text, finish_reason=self._reason, logprobs=logprobs)

    def _logprobs(self, tokens: list[TokenLogprob]) -> Logprobs:
        omni = self._server.omni
        texts = [token_text(omni, token.id)[0] for token in tokens]
        offsets = []
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        return Logprobs(
            tokens=texts,
            token_logprobs=[finite(token.logprob) for token in tokens],
            top_logprobs=[{token_text(omni, i)[0]: finite(p) for i, p in token.top.items()} for token in tokens],
            text_offset=offsets,
        )
