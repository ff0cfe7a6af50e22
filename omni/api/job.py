"""A request that waits for the stages."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from omni.api.ask import Ask
from omni.api.measure import held_by
from omni.api.ticket import Ticket
from omni.engine import EngineRequest, Held
from omni.errors import InputError, OmniError
from omni.frontend.messages import RemoteMedia, check_messages, check_size, has_media, remote_media
from omni.media import MediaOptions

_SHORT_BYTES = 2**16
"""Texts up to this are prepared in milliseconds."""


@dataclass(frozen=True, slots=True)
class Question:
    """What can be told of a request before anybody works on it. Made in the user's thread, and concerns nobody else.

    held: what the messages keep. remote: what is to be downloaded. short: it can be prepared in no time. error: it is wrong.
    """

    messages: object
    ask: Ask
    held: Held = ()
    remote: Sequence[RemoteMedia] = ()
    short: bool = False
    error: OmniError | None = None


def read_question(messages: object, ask: Ask, media: MediaOptions, names: bool) -> Question:
    """What is wrong with the messages is in the result. media, names: as of `check_messages`."""
    try:
        check_size(messages)
        held = held_by(messages)
        remote = remote_media(messages)
        if remote:
            # Nothing is downloaded for a request that cannot be answered.
            check_messages(messages, names=names, media=media)
        short = _short(messages, held, ask)
    except OmniError as error:
        return Question(messages, ask, error=error)
    except Exception as error:
        # The messages may be of the user's own types, and these do what they like.
        wrong = InputError("messages", f"cannot be read: {type(error).__name__}", "give lists, dicts and strings")
        wrong.__cause__ = error
        return Question(messages, ask, error=wrong)
    return Question(messages, ask, held, remote, short)


def _short(messages: object, held: Held, ask: Ask) -> bool:
    """Texts alone, and no form to compile. A path is a short string, and what it names may be anything."""
    small = sum(size for _, size in held) <= _SHORT_BYTES
    return small and all(params.structured is None for params in ask.sampling.values()) and not has_media(messages)


class Job:
    """A question on its way, prepared once for all of its answers. `RequestQueue` changes it.

    answers: tickets' ids, in order. tickets: of answers that are not handed over, by id. to_download: not begun, in order.
    downloads: under way. downloaded: by URL.
    requests: once prepared, by ticket id.
    """

    __slots__ = (
        "_question",
        "answers",
        "downloaded",
        "downloads",
        "id",
        "priority",
        "requests",
        "tickets",
        "to_download",
    )

    def __init__(self, question: Question, tickets: Sequence[Ticket]) -> None:
        self._question = question
        self.id = tickets[0].id
        self.priority = question.ask.priority
        self.answers = tuple(ticket.id for ticket in tickets)
        self.tickets = {ticket.id: ticket for ticket in tickets}
        self.to_download = deque(question.remote)
        self.downloads: dict[str, Future[bytes]] = {}
        self.downloaded: dict[str, bytes] = {}
        self.requests: dict[str, EngineRequest] = {}

    @property
    def question(self) -> Question:
        return self._question

    def forget_question(self) -> None:
        """It is prepared: what was given is kept no longer."""
        self._question = Question(None, self._question.ask)
        self.downloaded = {}
