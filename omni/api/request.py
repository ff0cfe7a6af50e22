"""One request of a `generate` call: its messages, a handle for each of its answers, and its preparation for the engine."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field

from omni.api.arguments import CheckedArguments
from omni.api.held import held_by, held_prepared
from omni.engine import EngineClient, EngineOutput, EngineRequest, Held, RequestFailed, RequestFinished, StageOutput
from omni.errors import InputError, OmniError, OverloadedError, plugin_call
from omni.frontend.base import Chat, Frontend
from omni.frontend.compile import SamplingCompiler
from omni.frontend.limit import PromptLimit, check_prompt
from omni.frontend.messages import RemoteMedia, check_messages, check_size, has_media, parse_messages, remote_media
from omni.frontend.options import FrontendOptions
from omni.frontend.prepared import checked_prepared
from omni.media import MediaOptions
from omni.payload import AudioChunk, GeneratedTokens, LogprobsChunk
from omni.pipeline import Pipeline
from omni.sampling import SamplingParams

_SHORT_BYTES = 2**16
"""Texts up to this size are prepared in milliseconds."""
_LISTS = (list, tuple)
_EVENT_BYTES = 500
"""Approximate size of the objects of an event."""
_TOKEN_BYTES = 40


@dataclass(frozen=True, slots=True)
class Started:
    """The request is prepared and waits until the engine can take it. taken: start of the preparation (`time.perf_counter`).
    after_stop: of the tokens that a stop string ends in, the text from that string on."""

    taken: float
    prompt_tokens: int
    after_stop: Callable[[Sequence[int]], str]


Event = Started | EngineOutput
Deliver = Callable[[float, Event], None]
"""Takes an event and its time (`time.perf_counter`). Called from any thread, one call at a time; must be brief."""


class UnreadEvents:
    """Host memory of one answer's events between `deliver` and `took`. An answer beyond its limit is cancelled: its reader gets the
    earlier events, then the error.

    `deliver` is for one thread at a time, and `took` for another one: each has a count of its own.
    """

    def __init__(self, put: Callable[[float, Event], None], most: int) -> None:
        """put: adds an item to the reader's queue. most: the limit in bytes."""
        self._put = put
        self._most = most
        self._delivered = 0
        self._taken = 0
        self._full = False
        self.cancel: Callable[[OverloadedError], object] = _no_effect
        """Ends the answer. Called from `deliver`, once."""

    def deliver(self, at: float, event: Event) -> None:
        if isinstance(event, RequestFinished | RequestFailed):
            # `cancel` refers to the caller of this method: a reference cycle.
            self.cancel = _no_effect
            self._put(at, event)
        elif not self._full:
            self._delivered += size_of(event)
            if self._delivered - self._taken <= self._most:
                self._put(at, event)
            else:
                self._full = True
                problem = f"this answer has more than {self._most:,} bytes of outputs that were not read"
                self.cancel(OverloadedError("engine.max_unread_bytes", problem, "read them sooner", "raise it"))

    def took(self, event: Event) -> None:
        self._taken += size_of(event)


def _no_effect(error: OverloadedError) -> None: ...


def size_of(event: Event) -> int:
    """Bytes of host memory, about."""
    match event:
        case StageOutput(meta=GeneratedTokens() as tokens, tensors=tensors):
            size = _TOKEN_BYTES * len(tokens.ids)
        case StageOutput(meta=AudioChunk() as audio, tensors=tensors):
            size = audio.samples.nbytes
        case StageOutput(meta=LogprobsChunk() as scores, tensors=tensors):
            size = scores.ids.nbytes + scores.logprobs.nbytes + scores.ranks.nbytes
        case StageOutput(tensors=tensors):
            size = 0
        case _:
            return _EVENT_BYTES
    return _EVENT_BYTES + size + sum(tensor.nbytes for tensor in tensors.values())


class RequestHandle:
    """One answer to a request. Delivers its events in order, the last one exactly once, whether the engine, the front end or the
    user ends it. `on_finished` is called once, without a lock, after the engine was notified.

    | state | changed by |
    |---|---|
    | waiting -> submitted to the engine | the thread that finds that the engine can take it, `submit` |
    | either -> finished | the engine's thread (`sink`), the front end and the executor (`cancel`) |
    """

    def __init__(self, handle_id: str, deliver: Deliver, on_finished: Callable[["RequestHandle"], object]) -> None:
        self.id = handle_id
        self._deliver = deliver
        self._on_finished = on_finished
        self._lock = threading.Lock()
        self._engine: EngineClient | None = None
        self._submitting = False
        self._finished = False
        self._cancelled: OmniError | None = None

    @property
    def finished(self) -> bool:
        return self._finished

    def start(self, started: Started) -> None:
        """Delivers the event; a no-op if the answer is finished."""
        with self._lock:
            if not self._finished:
                self._deliver(time.perf_counter(), started)

    def submit(self, engine: EngineClient, request: EngineRequest) -> None:
        """Submits the prepared request to the engine, unless it was cancelled in the meantime."""
        with self._lock:
            if self._finished:
                return
            self._submitting = True
        engine.submit(request, self.sink)  # without the lock, which the sink takes: a closed engine refuses at once
        with self._lock:
            self._submitting, self._engine = False, engine
            cancelled, self._cancelled = self._cancelled, None
        if cancelled is not None:
            engine.abort(self.id, cancelled)
            self._on_finished(self)

    def sink(self, output: EngineOutput) -> None:
        last = False
        try:
            with self._lock:
                if self._finished:
                    return
                self._finished = last = isinstance(output, RequestFinished | RequestFailed)
                self._deliver(time.perf_counter(), output)
        finally:
            if last:
                self._on_finished(self)

    def cancel(self, error: OmniError) -> None:
        """Aborts the request in any state; its last event is `RequestFailed(error)`. A no-op if it is finished."""
        with self._lock:
            if self._finished:
                return
            self._finished, submitting = True, self._submitting
            if submitting:
                # Not kept otherwise: the frames of its traceback may refer to the user's stream, and that to this handle.
                self._cancelled = error
            self._deliver(time.perf_counter(), RequestFailed(error))
            if self._engine is not None:
                self._engine.abort(self.id, error)
        if not submitting:
            # `submit` frees the place of a request that is being submitted, after the engine has its abort.
            self._on_finished(self)


@dataclass(slots=True, eq=False)
class Request:
    """A request until the engine has it. It is prepared once for all of its answers. `RequestQueue` changes it.

    handles: by id, of answers that the engine does not have. held: host memory of the messages. remote: media to download. short:
    prepared in milliseconds. error: why the messages are refused. to_download: downloads that have not begun. downloads: those
    under way, by URL. downloaded: contents, by URL. prepared: the engine's requests, by handle.
    """

    messages: object
    arguments: CheckedArguments
    handles: dict[str, RequestHandle]
    _: KW_ONLY
    held: Held = ()
    remote: Sequence[RemoteMedia] = ()
    short: bool = False
    error: OmniError | None = None
    id: str = field(init=False)
    samples: tuple[str, ...] = field(init=False)
    """Ids of the handles, in order."""
    to_download: deque[RemoteMedia] = field(init=False)
    downloads: dict[str, Future[bytes]] = field(default_factory=dict)
    downloaded: dict[str, bytes] = field(default_factory=dict)
    prepared: dict[str, EngineRequest] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.samples = tuple(self.handles)
        self.id = self.samples[0]
        self.to_download = deque(self.remote)

    def release_messages(self) -> None:
        """Called after preparation, which is the last use of the messages."""
        self.messages, self.held, self.downloaded = None, (), {}


def read_request(
    messages: object, arguments: CheckedArguments, handles: Sequence[RequestHandle], media: MediaOptions, names: bool
) -> Request:
    """Runs in the user's thread and touches no shared state. An error becomes `Request.error`. media, names: as of
    `check_messages`."""
    by_id = {handle.id: handle for handle in handles}
    try:
        check_size(messages)
        held = held_by(messages)
        remote = remote_media(messages)
        if remote:
            # Nothing is downloaded for a request that cannot be answered.
            check_messages(messages, names=names, media=media)
        # A path is a short string too, but its file may be large.
        short = sum(size for _, size in held) <= _SHORT_BYTES and not has_media(messages)
        short = short and not any(params.structured is not None for params in arguments.sampling.values())
    except OmniError as error:
        return Request(messages, arguments, by_id, error=error)
    except Exception as error:  # the messages may be of the user's own types, which raise anything
        wrong = InputError("messages", f"cannot be read: {type(error).__name__}", "give lists, dicts and strings")
        wrong.__cause__ = error
        return Request(messages, arguments, by_id, error=wrong)
    return Request(messages, arguments, by_id, held=held, remote=remote, short=short)


def split_requests(messages: object) -> tuple[list[object], bool]:
    """The requests, and whether a list of them was given: a list or tuple whose items are all lists, tuples or strings is a list of
    requests."""
    if not isinstance(messages, _LISTS) or not messages or not all(isinstance(m, (*_LISTS, str)) for m in messages):
        return [messages], False
    return list(messages), True


def check_at_stages(
    engine: EngineClient, compiler: SamplingCompiler, sampling: Mapping[str, SamplingParams], fields: Mapping[str, str]
) -> None:
    """See `EngineClient.check`; errors are about texts where texts were given. May wait for another process."""
    try:
        engine.check(compiler.in_ids(sampling), fields)
    except InputError as error:
        raise compiler.in_texts(error, sampling, fields) from error


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """Requests for the engine. requests: one for each handle. held: the host memory that they hold together."""

    requests: Mapping[str, EngineRequest]
    started: Started
    held: Held


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPreparer:
    """Decodes media, has the family's front end make inputs of the chat, and compiles its sampling. May take long."""

    pipeline: Pipeline
    frontend: Frontend
    compiler: SamplingCompiler
    engine: EngineClient
    options: FrontendOptions
    limit: PromptLimit | None

    def prepare(self, request: Request) -> PreparedRequest:
        """Raises any error of a library."""
        taken = time.perf_counter()
        arguments, frontend = request.arguments, self.frontend
        # Checked first: media of a refused request are not decoded.
        check_at_stages(self.engine, self.compiler, arguments.sampling, arguments.fields)
        messages = parse_messages(
            request.messages,
            sample_rate=frontend.sample_rate,
            names=frontend.takes_names,
            media=self.options.media,
            downloaded=request.downloaded,
        )
        chat = Chat(
            messages=messages,
            modalities=arguments.prepared,
            voice=arguments.voice,
            sampling=arguments.sampling,
            cache_salt=arguments.cache_salt,
            control_tokens=self.options.control_tokens,
            limit=self.limit,
            raw=arguments.raw_prompt,
        )
        with plugin_call("frontend", "preparing the request", frontend.prepare):
            returned, modalities = frontend.prepare(chat), arguments.modalities
            prepared = checked_prepared(returned, self.pipeline, modalities, frontend.prepare)
        check_prompt(prepared.prompt_tokens, arguments.max_prompt_tokens)
        compiled = self.compiler.compile(arguments.sampling, arguments.fields, arguments.n)
        self.engine.check({stage: compiled.sampling[stage] for stage in arguments.sampling}, arguments.fields)
        remote = self.engine.takes_text_rules
        requests = {
            handle: EngineRequest(
                id=handle,
                modalities=arguments.modalities,
                inputs=prepared.inputs,
                edges=prepared.edges,
                sampling=compiled.sampling,
                priority=arguments.priority,
                cache_salt=arguments.cache_salt,
                sample_index=sample,
                has_listener=arguments.has_listener,
                rules={} if remote else self.compiler.host_rules(compiled),
                text_rules=compiled.rules if remote else {},
            )
            for sample, handle in enumerate(request.samples)
        }
        started = Started(taken, prepared.prompt_tokens, compiled.after_stop)
        return PreparedRequest(requests, started, held_prepared(prepared))
