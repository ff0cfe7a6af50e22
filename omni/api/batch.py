"""The requests of one call."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from omni.api.ask import Ask
from omni.api.client import Client
from omni.api.reply import Reply
from omni.api.results import Output, Result
from omni.api.ticket import Deliver, Event, Ticket
from omni.errors import OmniError, StageError

Item = tuple[int, float, Event]
"""Which answer of the call, when (`time.perf_counter`), what."""


class Batch:
    """Submits requests whose events come through one mailbox, and turns what comes out of it into outputs.

    many: whether the user gave a list: then a request's error is in its output; otherwise it is raised. Where a request is
    sampled several times, so is what goes wrong before it starts; later it is one sample's error.
    """

    def __init__(
        self,
        client: Client,
        requests: Sequence[object],
        ask: Ask,
        *,
        many: bool,
        keep: bool,
        put: Callable[[Item], None],
    ) -> None:
        self._client = client
        self._many = many
        stage = client.pipeline.text_stage
        self._samples = ask.samples
        places = [(index, sample) for index in range(len(requests)) for sample in range(ask.samples)]
        self._replies = [Reply(*place, client.text_decoder(), stage, keep) for place in places]
        self._tickets: list[Ticket] = []
        self._left = len(places)
        for messages in requests:
            first = len(self._tickets)
            delivers = [_deliver(first + sample, put) for sample in range(ask.samples)]
            self._tickets += client.submit(messages, ask, delivers)

    @property
    def done(self) -> bool:
        """Every request has had its last event."""
        return self._left == 0

    def take(self, item: Item) -> Output | None:
        """What an item from the mailbox gives the user. Raises the error of a single request."""
        index, at, event = item
        reply = self._replies[index]
        if reply.done:
            return None
        try:
            output = reply.take(at, event)
        except Exception as error:
            failure = _known(error)
            self._tickets[index].cancel(failure)
            output = reply.fail(at, failure)
        if output is not None and output.finished:
            self._left -= 1
            if output.error is not None and not self._many and (self._samples == 1 or not reply.started):
                raise output.error
        return output

    def results(self) -> list[Result]:
        """One for each request. Needs `keep`."""
        results = [reply.result() for reply in self._replies]
        groups = [results[first : first + self._samples] for first in range(0, len(results), self._samples)]
        return [replace(first, alternatives=tuple(others)) for first, *others in groups]

    def cancel(self) -> None:
        """Gives up what is not over."""
        for ticket in self._tickets:
            ticket.cancel(StageError("request", "waiting for its outputs", "it was cancelled"))

    def abandon(self) -> None:
        """As `cancel`, soon. Safe in a finalizer."""
        if not self.done:
            self._client.reaper.soon(self.cancel)


def _deliver(index: int, put: Callable[[Item], None]) -> Deliver:
    return lambda at, event: put((index, at, event))


def _known(error: Exception) -> OmniError:
    if isinstance(error, OmniError):
        return error
    known = StageError("frontend", "decoding text", f"{type(error).__name__}: {error}")
    known.__cause__ = error
    return known
