"""The state that all handlers share."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from typing import Unpack

from omni.api import AsyncOmni, GenerateArguments, Output
from omni.api.arguments import Messages, Requests
from omni.errors import InputError, OmniError, OverloadedError, StageError
from omni.frontend.limit import LongPromptError
from omni.serve.activity import ActivityFeed
from omni.serve.audio.encoder_pool import EncoderPool
from omni.serve.audio.voices import Voices
from omni.serve.drain import Drain
from omni.serve.errors import EngineDown, Rename, renamed
from omni.serve.limits import AnswerSlots, ServeLimits
from omni.serve.metrics import ServerMetrics
from omni.serve.observer import Observer, RequestObserver
from omni.serve.options import ServeOptions
from omni.serve.transcripts import Transcripts
from omni.utils.interpreter import CAN_START

Shorter = Callable[[LongPromptError], tuple[Messages, int | None] | None]
"""Makes shorter messages after the error of a long prompt, and `max_prompt_tokens` of them; None if there are none."""


class Server:
    """The model, the limits, and the answers under way. One for each app; its methods are for the event loop's thread.

    names: of the model in requests, the first in answers. voices: the model's, by name. observers: may be added before the first
    request; the first is `metrics`. failure: of the engine, when the app ended.
    """

    def __init__(self, omni: AsyncOmni, options: ServeOptions) -> None:
        self.omni = omni
        self.options = options
        self.names = options.model_names or ("omni",)
        self.voices = Voices(omni.voices, options.voices)
        self.limits = ServeLimits(options)
        self.encoders = EncoderPool(options.encoder_processes if CAN_START else 0)
        self.activity = ActivityFeed(omni, self.limits)
        self.transcripts = Transcripts(options.audio_seconds, options.max_kept_audio)
        self.metrics = ServerMetrics(omni, self.limits, self.names[0])
        self.observers: list[Observer] = [self.metrics]
        self.failure: OmniError | None = None
        self.drain = Drain()

    @asynccontextmanager
    async def generate(
        self,
        kind: str,
        messages: Messages | Requests,
        rename: Rename = str,
        *,
        slots: AnswerSlots | None = None,
        requests: int = 1,
        shorter: Shorter | None = None,
        **arguments: Unpack[GenerateArguments],
    ) -> AsyncIterator[AsyncIterator[Output]]:
        """The outputs of a request, which runs from the start of the block until it is left: that cancels it. An error of
        any answer is raised by the iterator.

        kind: for observers. rename: of fields in errors. slots: the request's, if it has some already. requests: chats in
        `messages`, if it is a list of them. shorter: has a prompt that is too long tried again.
        Raises OverloadedError if too many answers are under way, and InputError.
        """
        if arguments.get("priority", 0) and not self.options.client_priority:
            raise InputError("priority", "is not taken here", "leave it out", "serve with --client-priority")
        answers = requests * arguments.get("n", 1)
        failure: BaseException | None = None
        with self.limits.answer_slots() as own:
            slots = slots or own
            with _renaming(rename), self.counting_refusals(kind):
                slots.take(answers)
            watching = [observer.started(kind, answers) for observer in self.observers]
            try:
                with _renaming(rename):
                    async with self._opened(messages, arguments, shorter) as outputs:
                        yield _observed(outputs, watching)
            except StageError as error:
                failure = error
                if self.omni.failure is None:
                    raise
                failure = EngineDown(error.stage, error.doing, error.problem)
                raise failure from error
            except Exception as error:
                failure = error
                raise
            finally:
                slots.free()
                for observer in watching:
                    observer.ended(failure)

    async def prompt_tokens(self, kind: str, messages: Messages, **arguments: Unpack[GenerateArguments]) -> int:
        """Counts the tokens of a prompt, which is prepared and sent to no stage. 0 if the front end does not count them. The call
        occupies one answer slot, since media are read for it. kind: as in `generate`. Raises OverloadedError and InputError."""
        arguments["max_prompt_tokens"] = 0
        with self.limits.answer_slots() as slots:
            with self.counting_refusals(kind):
                slots.take(1)
            try:
                async with self.omni.generate(messages, **arguments) as outputs:
                    async for _ in outputs:
                        break
            except LongPromptError as error:
                return error.tokens
        return 0

    def _opened(
        self, messages: Messages | Requests, arguments: GenerateArguments, shorter: Shorter | None
    ) -> AbstractAsyncContextManager[AsyncIterator[Output]]:
        if shorter is None:
            return self.omni.generate(messages, **arguments)
        return aclosing(self._retried(messages, arguments, shorter))

    async def _retried(
        self, messages: Messages | Requests, arguments: GenerateArguments, shorter: Shorter
    ) -> AsyncGenerator[Output]:
        while True:
            try:
                async with self.omni.generate(messages, **arguments) as outputs:
                    async for output in outputs:
                        yield output
                return
            except LongPromptError as error:
                found = shorter(error)
                if found is None:
                    raise
                messages, most = found
                arguments = arguments.copy()
                arguments["max_prompt_tokens"] = most

    def check_free_slot(self, kind: str) -> None:
        """Raises OverloadedError if no slot is free for a further answer."""
        with self.counting_refusals(kind):
            self.limits.check()

    @contextmanager
    def counting_refusals(self, kind: str) -> Iterator[None]:
        """Notifies observers of a request that is refused inside the block."""
        try:
            yield
        except OverloadedError:
            self.refused(kind)
            raise

    def refused(self, kind: str) -> None:
        """Notifies observers of a request that was refused before `generate`."""
        for observer in self.observers:
            observer.refused(kind)


async def _observed(outputs: AsyncIterator[Output], watching: Sequence[RequestObserver]) -> AsyncIterator[Output]:
    async for output in outputs:
        if output.error is not None:
            raise output.error
        for observer in watching:
            observer.output(output)
        yield output
        for observer in watching:
            observer.taken()


@contextmanager
def _renaming(rename: Rename) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise renamed(error, rename) from error
