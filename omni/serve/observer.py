"""What others learn of requests, such as metrics."""

from omni.api import Output


class Observer:
    """Is told of every request, on the event loop's thread: must be brief. Override what you need.

    kind: of the request, such as `"chat"`, `"completions"` or `"speech"`.
    """

    def started(self, kind: str, answers: int) -> None:
        """A request has a place. answers: how many it asks for."""

    def refused(self, kind: str) -> None:
        """There was no place for a request."""

    def output(self, kind: str, output: Output) -> None:
        """A piece of an answer, as it goes to the client. The last one has the answer's metrics and usage."""

    def ended(self, kind: str, error: BaseException | None) -> None:
        """A request that had a place is over. error: why it failed; None also if the client went away."""
