"""The requests of one call."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from omni.api.ask import Ask
from omni.api.client import Client
from omni.api.reply import Reply
from omni.api.results import Output, Result
from omni.api.ticket import Deliver, Event, Ticket
from omni.errors import StageError, known

Item = tuple[int, float, Event]
"""Which answer of the call, when (`time.perf_counter`), what."""


class Batch:
    """Requests whose events come through one mailbox, and what comes out of it as outputs. They run from `submit` on.

    `take` is for one thread at a time.

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
        self._left = len(places)
        delivers = [_deliver(index, put) for index in range(len(places))]
        groups = [delivers[first : first + ask.samples] for first in range(0, len(places), ask.samples)]
        self._jobs = [client.job(messages, ask, group) for messages, group in zip(requests, groups, strict=True)]
        self._tickets: list[Ticket] = [ticket for job in self._jobs for ticket in job.tickets.values()]

    def submit(self) -> None:
        """Starts the requests; returns at once."""
        jobs, self._jobs = self._jobs, []
        self._client.submit(jobs)

    def check_home(self) -> None:
        """Raises ForkError in a forked process."""
        self._client.owner.check("reading a request's outputs")

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
            failure = known("frontend", "decoding text", error)
            self._client.executor.ask(partial(self._tickets[index].cancel, failure))
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
        """Gives up what is not over, and waits until that is done. A no-op in a forked process."""
        if self._client.owner.forked or all(ticket.over for ticket in self._tickets):
            return
        self._client.executor.call(self._cancel)

    def give_up(self) -> None:
        """As `cancel`, without waiting."""
        if not self._client.owner.forked:
            self._client.executor.ask(self._cancel)

    def abandon(self) -> None:
        """As `give_up`, soon. Safe in a finalizer."""
        if not self.done and not self._client.owner.forked:
            self._client.executor.soon(self._cancel)

    def _cancel(self) -> None:
        for ticket in self._tickets:
            ticket.cancel(StageError("request", "waiting for its outputs", "it was cancelled"))


def _deliver(index: int, put: Callable[[Item], None]) -> Deliver:
    return lambda at, event: put((index, at, event))
