"""Number of drafts worth verifying in the next step of a request, by the device's reports on its steps."""

from collections import deque

LEAST_LAG = 2
"""As many steps as are in flight by default."""


class DraftReports:
    """The report of a step applies to the step `lag` later, even if the host has read it earlier. So the number of
    steps in flight changes no draft of a request alone, up to `lag` of them."""

    def __init__(self) -> None:
        self._reports = deque([0] * LEAST_LAG)

    def restart(self, drafts: int, lag: int = LEAST_LAG) -> None:
        """Before the first step. drafts: that steps are worth without a report. lag: in steps of the request, at least 1."""
        self._reports = deque([drafts] * lag)

    def read(self) -> None:
        """Adds a step that the host has read. Without a report of its own, the last report remains valid."""
        self._reports.append(self._reports[-1])
        self._reports.popleft()

    def report(self, drafts: int) -> None:
        """By the step that was read last."""
        self._reports[-1] = drafts

    def wanted(self, steps_in_flight: int) -> int:
        """Number of drafts that the next step is worth verifying. steps_in_flight: of the request."""
        return self._reports[min(steps_in_flight - len(self._reports), -1)]
