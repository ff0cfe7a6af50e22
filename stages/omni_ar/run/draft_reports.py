"""Number of drafts worth verifying in the next step of a request, by the device's reports on its steps."""

from omni_ar.options import MAX_IN_FLIGHT

LAG = MAX_IN_FLIGHT
"""Steps of a request from a report to the first step that it counts for: as many as can be in flight."""
WINDOW = LAG
"""Number of consecutive steps that a report counts for."""


class DraftReports:
    """The report of a step counts for `WINDOW` steps, of which the first is the step `LAG` later, even if the host has read it
    earlier. So the number of steps in flight changes no draft of a request alone.

    A step is worth the most drafts of the reports that count for it: a row whose drafter finds nothing for fewer steps keeps its
    room, which costs less than the drafts that would otherwise have none, `LAG` steps later."""

    def __init__(self) -> None:
        self._start = 0
        self._reports: list[int | None] = []
        """Of the newest steps that the host has read; None before the first report."""

    def restart(self, drafts: int) -> None:
        """Before the first step. drafts: that steps are worth without a report."""
        self._start = drafts
        self._reports.clear()

    def read(self) -> None:
        """Adds a step that the host has read. Without a report of its own, the last report remains valid."""
        self._reports.append(self._reports[-1] if self._reports else None)
        del self._reports[: -(LAG + WINDOW - 1)]

    def report(self, drafts: int) -> None:
        """By the step that was read last."""
        self._reports[-1] = drafts

    def wanted(self, steps_in_flight: int) -> int:
        """Number of drafts that the next step is worth verifying. steps_in_flight: of the request, fewer than `LAG`."""
        known = len(self._reports) + steps_in_flight + 1 - LAG
        reports = self._reports[max(known - WINDOW, 0) : max(known, 0)]
        return max((each for each in reports if each is not None), default=self._start)
