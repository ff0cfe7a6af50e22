"""What all handlers share."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Unpack

from omni.api import AsyncOmni, GenerateArguments, Output
from omni.api.request import Messages, Requests
from omni.errors import InputError, OverloadedError
from omni.serve.audio.voices import Voices
from omni.serve.errors import Rename, renamed
from omni.serve.limits import ServeLimits
from omni.serve.observer import Observer
from omni.serve.options import ServeOptions
from omni.serve.transcripts import Transcripts


class Server:
    """The model, what is allowed, and what is under way. One for each app; its methods are for the event loop's thread.

    names: of the model in requests, the first in answers. voices: the model's, by name. observers: may be added before the first
    request.
    """

    def __init__(self, omni: AsyncOmni, options: ServeOptions) -> None:
        self.omni = omni
        self.options = options
        self.names = options.model_names or ("omni",)
        self.voices = Voices(omni.voices, options.voices)
        self.limits = ServeLimits(options)
        self.transcripts = Transcripts(options.audio_seconds, options.max_kept_audio)
        self.observers: list[Observer] = []

    @asynccontextmanager
    async def generate(
        self,
        kind: str,
        messages: Messages | Requests,
        rename: Rename = str,
        *,
        requests: int = 1,
        **arguments: Unpack[GenerateArguments],
    ) -> AsyncIterator[AsyncIterator[Output]]:
        """The outputs of a request that has a place, from where it starts until the block is left, which cancels it. An error of
        any answer is raised by the iterator.

        kind: for observers. rename: of fields in errors. requests: chats in `messages`, if it is a list of them.
        Raises OverloadedError without a place, InputError.
        """
        answers = requests * arguments.get("n", 1)
        self.check_place(kind, answers)
        failure: BaseException | None = None
        with self.limits.place(answers):
            self._tell(lambda observer: observer.started(kind, answers))
            try:
                with _renaming(rename):
                    async with self.omni.generate(messages, **arguments) as outputs:
                        yield self._observed(kind, outputs)
            except Exception as error:
                failure = error
                raise
            finally:
                self._tell(lambda observer: observer.ended(kind, failure))

    def check_place(self, kind: str, answers: int = 1) -> None:
        """Raises OverloadedError if there is no place for so many answers."""
        try:
            self.limits.check(answers)
        except OverloadedError:
            self._tell(lambda observer: observer.refused(kind))
            raise

    async def _observed(self, kind: str, outputs: AsyncIterator[Output]) -> AsyncIterator[Output]:
        async for output in outputs:
            if output.error is not None:
                raise output.error
            self._tell(partial(_output, kind, output))
            yield output

    def _tell(self, what: Callable[[Observer], None]) -> None:
        for observer in self.observers:
            what(observer)


def _output(kind: str, output: Output, observer: Observer) -> None:
    observer.output(kind, output)


@contextmanager
def _renaming(rename: Rename) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise renamed(error, rename) from error
