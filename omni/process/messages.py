"""Messages between the user's process and the engine's."""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from omni.engine import EngineOptions, EngineRequest, StageMemory, StartReport
from omni.engine.memory import DeviceShare
from omni.engine.request import StageFinished, StageOutput
from omni.frontend.vocabulary import Vocabulary
from omni.ipc import Typed
from omni.payload import AudioChunk, GeneratedTokens, Payload
from omni.pipeline import Pipeline
from omni.plugin.manager import Plugins
from omni.process.errors import ErrorData
from omni.sampling import SamplingParams, TextRules
from omni.stage import StageUsage
from omni.timeline.trace import Trace
from omni.utils.struct_types import STRUCT_TYPES


class _NoOptions(msgspec.Struct, frozen=True):
    """A substitute for the options of a stage, which are sent with the name of their type."""


class PayloadData(msgspec.Struct, frozen=True, array_like=True):
    """A payload in host memory, as a part of a message."""

    meta: Typed[msgspec.Struct]
    tensors: dict[str, torch.Tensor]


# To the engine.


class Start(msgspec.Struct, frozen=True, tag=True, array_like=True, kw_only=True):
    """Load the stages of a place and serve them. checkpoint: its folder. share: of the device's memory. threads: of
    torch on the CPU. levels: of the user's loggers, by name."""

    checkpoint: str
    pipeline: Pipeline
    stage_options: dict[str, Typed[msgspec.Struct]]
    plugins: Plugins
    options: EngineOptions
    place: str
    share: DeviceShare
    threads: int
    levels: dict[str, int]

    @classmethod
    def of(
        cls,
        *,
        checkpoint: str,
        pipeline: Pipeline,
        plugins: Plugins,
        options: EngineOptions,
        place: str,
        share: DeviceShare,
        threads: int,
    ) -> "Start":
        typed = {stage.name: Typed(stage.options) for stage in pipeline.stages}
        bare = tuple(msgspec.structs.replace(stage, options=_NoOptions()) for stage in pipeline.stages)
        plain = msgspec.structs.replace(pipeline, stages=bare)
        return cls(
            checkpoint=checkpoint,
            pipeline=plain,
            stage_options=typed,
            plugins=plugins,
            options=options,
            place=place,
            share=share,
            threads=threads,
            levels=_log_levels(),
        )

    def whole_pipeline(self) -> Pipeline:
        stages = tuple(
            msgspec.structs.replace(stage, options=self.stage_options[stage.name].value)
            for stage in self.pipeline.stages
        )
        return msgspec.structs.replace(self.pipeline, stages=stages)


class TextVocabulary(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The front end's `Vocabulary`, after `Start`. tokens: None if it has none. tokenizer: the JSON of one of the tokenizers
    library."""

    tokens: tuple[bytes, ...] | None
    tokenizer: str | None

    @classmethod
    def of(cls, vocabulary: Vocabulary | None) -> "TextVocabulary":
        if vocabulary is None:
            return cls(None, None)
        tokenizer = vocabulary.tokenizer
        return cls(vocabulary.tokens, tokenizer.to_str() if tokenizer is not None else None)

    def vocabulary(self) -> Vocabulary | None:
        if self.tokens is None:
            return None
        return Vocabulary(self.tokens, Tokenizer.from_str(self.tokenizer) if self.tokenizer is not None else None)


class RankDescriptor(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Before `Start`, for a rank of a stage that is cut across engines: the socket to another rank that comes with the message, or
    with None the memory of the ranks' store."""

    stage: str
    other: int | None


class Submit(msgspec.Struct, frozen=True, tag=True, array_like=True, kw_only=True):
    """Submits an `EngineRequest`; the fields are those of the request."""

    id: str
    modalities: frozenset[str]
    inputs: dict[str, list[PayloadData]]
    edges: dict[str, Typed[msgspec.Struct]]
    sampling: dict[str, SamplingParams]
    priority: int
    cache_salt: str
    sample_index: int
    text_rules: dict[str, TextRules]
    number: int
    places: dict[str, str]
    has_listener: bool

    @classmethod
    def of(cls, request: EngineRequest) -> "Submit":
        if request.rules:
            raise TypeError("live rules cannot be sent to another process: give text_rules")
        return cls(
            id=request.id,
            modalities=request.modalities,
            inputs={
                name: [_payload_data(payload) for payload in payloads] for name, payloads in request.inputs.items()
            },
            edges={name: Typed(arguments) for name, arguments in request.edges.items()},
            sampling=dict(request.sampling),
            priority=request.priority,
            cache_salt=request.cache_salt,
            sample_index=request.sample_index,
            text_rules=dict(request.text_rules),
            number=request.number,
            places=dict(request.places),
            has_listener=request.has_listener,
        )

    def request(self) -> EngineRequest:
        """The request, without its rules."""
        return EngineRequest(
            id=self.id,
            modalities=self.modalities,
            inputs={
                name: [Payload(p.meta.value, p.tensors) for p in payloads] for name, payloads in self.inputs.items()
            },
            edges={name: arguments.value for name, arguments in self.edges.items()},
            sampling=self.sampling,
            priority=self.priority,
            cache_salt=self.cache_salt,
            sample_index=self.sample_index,
            number=self.number,
            places=self.places,
            has_listener=self.has_listener,
        )


class AbortSubmitted(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """number: as in `AbortRequest`."""

    request_id: str
    error: ErrorData
    number: int


class Check(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`Engine.check`; the answer is an `Answer`."""

    number: int
    sampling: dict[str, SamplingParams]
    fields: dict[str, str]


class GetState(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The answer is an `Answer`."""

    number: int


class Connect(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Connect to the engine on a place, through the socket that comes with the message. The answer is an `Answer`. If the
    connection ends later, `number` is in `Turn.unlinked`."""

    number: int
    place: str


class Close(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Abort every request, free everything and exit, after `Closed`."""


ToEngine = RankDescriptor | Start | TextVocabulary | Submit | AbortSubmitted | Check | GetState | Connect | Close


# From the engine.


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The stages are loaded. longest_prompts: by stage. report: of the start. The message brings the ring for arrays of outputs."""

    memory: dict[str, StageMemory]
    longest_prompts: dict[str, int | None]
    report: StartReport


class ProcessFailed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The process ends with this error. The last message."""

    error: ErrorData


class TokensOut(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`GeneratedTokens` of an output. They are most of the messages, and so have a type of their own, as audio has."""

    request_id: str
    modality: str
    ids: tuple[int, ...]
    ends: bool


class AudioOut(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """An `AudioChunk` of an output."""

    request_id: str
    modality: str
    samples: NDArray[np.float32]
    sample_rate: int


class OtherOut(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A `StageOutput` of another type."""

    request_id: str
    modality: str
    meta: Typed[msgspec.Struct]
    tensors: dict[str, torch.Tensor]


class StageFinishedOut(msgspec.Struct, frozen=True, tag=True, array_like=True):
    request_id: str
    stage: str
    reason: str
    counts: dict[str, int]
    withheld: tuple[int, ...]


class FinishedOut(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The last message of a request. error: None if it is complete."""

    request_id: str
    error: ErrorData | None = None


Out = TokensOut | AudioOut | OtherOut | StageFinishedOut | FinishedOut


def output_of(item: TokensOut | AudioOut | OtherOut | StageFinishedOut) -> StageOutput | StageFinished:
    match item:
        case TokensOut(_, modality, ids, ends):
            return StageOutput(modality, GeneratedTokens(ids=ids, ends=ends))
        case AudioOut(_, modality, samples, sample_rate):
            return StageOutput(modality, AudioChunk(samples=samples, sample_rate=sample_rate))
        case OtherOut(_, modality, meta, tensors):
            return StageOutput(modality, meta.value, tensors)
        case StageFinishedOut(_, stage, reason, counts, withheld):
            return StageFinished(stage, reason, counts, withheld)


class EngineState(msgspec.Struct, frozen=True):
    """The state of an engine. usage_error, counters_error: the error of a stage that cannot report; the mapping is then empty."""

    usage: dict[str, StageUsage]
    counters: dict[str, Mapping[str, int]]
    idle: bool
    usage_error: ErrorData | None = None
    counters_error: ErrorData | None = None


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a `Check` or a `Connect` (error: of the call), or to a `GetState`."""

    number: int
    state: EngineState | None = None
    error: ErrorData | None = None


class LogRecordOut(msgspec.Struct, frozen=True, array_like=True):
    """A record of a logger of the engine process. text: with the traceback, if any."""

    logger: str
    level: int
    text: str


class Turn(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Everything since the last such message: outputs of all requests in order, then answers, then log records.

    unlinked: the numbers of `Connect`s whose connection has ended; the requests that needed it fail in `outputs`.
    closed: stages that were closed after a fault; their requests fail in `outputs`.
    """

    outputs: list[Out]
    answers: list[Answer]
    logs: list[LogRecordOut]
    unlinked: list[int] = []
    closed: list[str] = []


def lost_turn(raw: list[Any]) -> tuple[list[str], Turn]:
    """Of a message that cannot be decoded, whose outputs may be at fault: the requests of the outputs, and the rest.

    raw: as `Undecodable.raw`. Raises ValueError if that is not known.
    """
    match raw:
        case ["Turn", [*outputs], *others]:
            with STRUCT_TYPES:
                rest = msgspec.convert(["Turn", [], *others], Turn)
            return [str(output[1]) for output in outputs], rest
    raise ValueError("not a turn")


class Closed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The last message of an engine. error: the error of `Engine.close`. state: the state after that call. timeline: the engine's
    timeline, if it was recorded."""

    state: EngineState
    error: ErrorData | None = None
    timeline: Trace | None = None


FromEngine = Ready | ProcessFailed | Turn | Closed


def _log_levels() -> dict[str, int]:
    """Log levels that are set, "" for the root's."""
    found = {"": logging.getLogger().level}
    for name, logger in logging.getLogger().manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and logger.level:
            found[name] = logger.level
    return found


def _payload_data(payload: Payload) -> PayloadData:
    tensors = {}
    for name, tensor in payload.tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"tensor {name!r} of a host payload is a {type(tensor).__name__}")
        tensors[name] = tensor
    return PayloadData(Typed(payload.meta), tensors)
