"""The requests of one `generate` call, and the streams of their outputs."""

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Self

from omni.api.arguments import GenerateArguments, check_arguments
from omni.api.client import Client
from omni.api.request import Event, RequestHandle, UnreadEvents, read_request, split_requests
from omni.api.request_output import RequestOutput
from omni.api.results import Output, Result
from omni.errors import InputError, OmniError, StageError, as_omni_error, plugin_call
from omni.pipeline import FRONTEND
from omni.utils.interrupts import is_interrupt

Item = tuple[int, float, Event]
"""Index of the answer in its call, time (`time.perf_counter`), event."""


class GenerateCall:
    """The requests of one call: their events come through one queue and become outputs. They run from `submit` on. `take` is for
    one thread at a time.

    many: whether the user gave a list. Then a request's error is in its output; otherwise it is raised. With several samples,
    errors before the request starts are raised too; later ones are of one sample.
    """

    def __init__(
        self,
        client: Client,
        messages: object,
        arguments: GenerateArguments,
        *,
        keep: bool,
        put: Callable[[Item], None],
        may_wait: bool,
    ) -> None:
        """keep: whether `results` is wanted. put: into the queue of the reader. may_wait: as in `Client.check`.

        Raises InputError, StageError when closed, ForkError in a forked process.
        """
        client.check_open()
        checked = replace(check_arguments(client.pipeline, arguments), has_listener=not keep)
        client.check(checked, may_wait=may_wait)
        requests, self.many = split_requests(messages)
        if checked.raw_prompt and not all(isinstance(each, str) for each in requests):
            raise InputError("raw_prompt", "is given for messages", "give the prompt as a string")
        self._client = client
        self._samples = n = checked.n
        stage = client.pipeline.text_stage
        answers = [(index, sample) for index in range(len(requests)) for sample in range(n)]
        make = client.frontend.text_decoder
        with plugin_call(FRONTEND, "making a text decoder", make):
            self._outputs = [RequestOutput(*answer, make(), stage, keep) for answer in answers]
        self._left = len(answers)
        self._unread = [
            UnreadEvents(partial(_deliver, index, put), client.max_unread_bytes) for index in range(len(answers))
        ]
        self._handles = [client.handle(unread.deliver) for unread in self._unread]
        for unread, handle in zip(self._unread, self._handles, strict=True):
            # Not in the thread that delivers, which holds the handle's lock.
            unread.cancel = partial(_cancel_for, client, handle)
        self._requests = [
            read_request(each, checked, self._handles[first : first + n], client.media, client.frontend.takes_names)
            for each, first in zip(requests, range(0, len(answers), n), strict=True)
        ]

    def submit(self) -> None:
        """Starts the requests; returns at once. Errors of a request come as events."""
        requests, self._requests = self._requests, []
        self._client.handles.update({handle.id: handle for handle in self._handles})
        self._client.executor.submit(partial(self._client.queue.add, requests))

    def check_owner(self) -> None:
        self._client.owner.check("reading a request's outputs")

    @property
    def finished(self) -> bool:
        """Every answer has had its last event."""
        return self._left == 0

    def take(self, item: Item) -> Output | None:
        """The output of an item from the queue, if any. Raises the error of a single request."""
        index, at, event = item
        self._unread[index].took(event)
        answer = self._outputs[index]
        if answer.finished:
            return None
        try:
            output = answer.take(at, event)
        except BaseException as error:  # a SystemExit of a text decoder would end the program
            if is_interrupt(error):
                raise
            failure = as_omni_error("frontend", "decoding text", error)
            self._client.executor.submit(partial(self._handles[index].cancel, failure))
            output = answer.end(at, failure)
        if output is not None and output.finished:
            self._left -= 1
            if output.error is not None and not self.many and (self._samples == 1 or not answer.started):
                raise output.error
        return output

    def results(self) -> Result | list[Result]:
        """One for each request; just the one if no list was given. Needs `keep`."""
        results = [answer.result() for answer in self._outputs]
        groups = [results[first : first + self._samples] for first in range(0, len(results), self._samples)]
        requests = [replace(first, alternatives=tuple(others)) for first, *others in groups]
        return requests if self.many else requests[0]

    def cancel(self) -> None:
        """Cancels the unfinished answers. Does not wait. A no-op in a forked process."""
        _cancel_soon(self._client, self._handles)

    def abandon_with(self, stream: object) -> None:
        """Cancels the unfinished answers when `stream` is garbage collected."""
        # Not a method of the call: it would keep the call's outputs, and the frames of their errors may refer to the stream, which
        # would then never be collected.
        weakref.finalize(stream, _cancel_soon, self._client, self._handles).atexit = False


def _cancel_soon(client: Client, handles: Sequence[RequestHandle]) -> None:
    if not client.owner.forked and not all(handle.finished for handle in handles):
        client.executor.soon(partial(_cancel, handles))


def _cancel(handles: Sequence[RequestHandle]) -> None:
    for handle in handles:
        handle.cancel(StageError("request", "waiting for its outputs", "it was cancelled"))


def _cancel_for(client: Client, handle: RequestHandle, error: OmniError) -> None:
    client.executor.soon(partial(handle.cancel, error))


def _deliver(index: int, put: Callable[[Item], None], at: float, event: Event) -> None:
    put((index, at, event))


class CallOutputs:
    """Base class of the output streams of `Omni` and `AsyncOmni`."""

    def __init__(self, session: object, call: GenerateCall, put: Callable[[Item | None], None]) -> None:
        """session: kept while the stream is read, so that the model stays loaded. put: into the queue of `call`."""
        self._session = session
        self._call = call
        self._put = put
        self._closed = False
        # Not a `__del__`, which would also run for an object whose `__init__` was interrupted.
        call.abandon_with(self)

    def submit(self) -> None:
        """Starts the requests. If it is interrupted, they are cancelled."""
        try:
            self._call.submit()
        except BaseException:
            self._cancel()
            raise

    def _cancel(self) -> None:
        """Ends the stream, and cancels its requests. Does not wait: the garbage collector, which closes generators, may call this
        at any point of any thread, even where the thread holds a lock that the cancelling takes."""
        self._end()
        self._call.cancel()

    def _end(self) -> None:
        self._closed = True
        # Wakes the reader that waits for an item; the others wait for their turn.
        self._put(None)


class OutputStream(CallOutputs):
    """The outputs of one `generate` call, an iterator. Its requests run from the start, whether it is read or not. Closing it,
    leaving its `with` block, dropping the last reference to it or an exception while it waits (Ctrl-C) cancels unfinished requests.
    Several threads may read it: each output or error goes to one of them, and all end with the last output or when it is closed."""

    def __init__(self, session: object, call: GenerateCall, queue: "SimpleQueue[Item | None]") -> None:
        super().__init__(session, call, queue.put)
        self._queue = queue
        self._reading = threading.Lock()
        """Held by the thread that reads: outputs are made in the order of their items."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Output:
        self._call.check_owner()
        try:
            with self._reading:
                output = self._next()
        except BaseException:
            self._cancel()
            raise
        if output is None:
            raise StopIteration
        return output

    def _next(self) -> Output | None:
        while not self._closed and not self._call.finished:
            item = self._queue.get()
            if item is None or self._closed:
                continue
            try:
                output = self._call.take(item)
            except BaseException:
                # Before the next reader's turn.
                self._closed = True
                raise
            if output is not None:
                return output
        return None

    def close(self) -> None:
        """Cancels unfinished requests, without waiting for their end. Idempotent."""
        self._cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class AsyncItemQueue:
    """A queue from any thread into one event loop. A burst of items wakes the loop once. None: the reader checks for the end."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[Item | None] = deque()
        self._filled = asyncio.Event()
        self._waking = False

    def put(self, item: Item | None) -> None:
        self._items.append(item)
        if not self._waking:
            self._waking = True
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                # The loop is closed, so no reader is left.
                self._items.clear()

    async def get(self) -> Item | None:
        """Returns the next item. One reader at a time."""
        if self._items:
            # Otherwise a reader that is behind would never yield to the loop, nor see its cancellation.
            await asyncio.sleep(0)
        while not self._items:
            await self._filled.wait()
            self._filled.clear()
        return self._items.popleft()

    def _wake(self) -> None:
        # Before the reader checks: an item that comes after its check wakes the loop again.
        self._waking = False
        self._filled.set()


class AsyncOutputStream(CallOutputs):
    """The outputs of one `generate` call, an asynchronous iterator. Its requests run from the start, whether it is read or not.
    `aclose`, leaving its `async with` block, dropping the last reference to it (`break`) or cancelling the task that reads it
    cancels unfinished requests. Several tasks may read it: each output or error goes to one of them, and all end with the last
    output, when it is closed, or when one of them is cancelled."""

    def __init__(self, session: object, call: GenerateCall, queue: AsyncItemQueue) -> None:
        super().__init__(session, call, queue.put)
        self._queue = queue
        self._reading = asyncio.Lock()
        """Held by the task that reads: outputs are made in the order of their items."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Output:
        self._call.check_owner()
        try:
            async with self._reading:
                output = await self._next()
        except BaseException:
            self._cancel()
            raise
        if output is None:
            raise StopAsyncIteration
        return output

    async def _next(self) -> Output | None:
        while not self._closed and not self._call.finished:
            item = await self._queue.get()
            if item is not None and not self._closed:
                output = self._call.take(item)
                if output is not None:
                    return output
        return None

    async def aclose(self) -> None:
        """Cancels unfinished requests. Idempotent."""
        self._cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._cancel()
