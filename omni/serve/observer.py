"""Callbacks for requests of the server, such as those of metrics."""

from omni.api import Output


class RequestObserver:
    """Callbacks for one request, on the event loop's thread: they must be brief. Override those that you need."""

    def output(self, output: Output) -> None:
        """A piece of an answer comes. The last one has the answer's metrics and usage."""

    def taken(self) -> None:
        """The client has received the piece. A slow client delays the next one."""

    def ended(self, error: BaseException | None) -> None:
        """The request has ended. error: why it failed; None also if the client disconnected."""


class Observer:
    """Callbacks for each request, on the event loop's thread: they must be brief. Override those that you need.

    kind: of the request, such as `"chat"`, `"completions"` or `"speech"`.
    """

    def started(self, kind: str, answers: int) -> RequestObserver:
        """A request is accepted. answers: the number that it asks for. Returns the callbacks for this request."""
        return RequestObserver()

    def refused(self, kind: str) -> None:
        """A request is refused, since too many answers are under way."""
