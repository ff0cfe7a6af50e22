"""The gain of drafts in the next step of a request, by the device's reports on its steps."""

from omni_ar.options import MAX_IN_FLIGHT

LAG = MAX_IN_FLIGHT
"""Steps of a request from a report to the first step that it counts for: as many as can be in flight."""
WINDOW = LAG
"""Number of consecutive steps that a report counts for."""
PROBE = 256
"""Number of steps that verify no drafts after which a cheap drafter with weights is tried again; twice as many after each time."""


class GainHistory:
    """The report of a step counts for `WINDOW` steps, of which the first is the step `LAG` later, even if the host has read it
    earlier. So the number of steps in flight changes no draft of a request alone.

    The gain of a step is the mean of the reports that count for it: a few steps in which the drafter finds nothing, or drafts
    that are wrong by chance, do not end the verification of the next ones."""

    def __init__(self) -> None:
        self._start = 0
        self._reports: list[int] = []
        """Reports of the newest steps that the host has read, from the first report on."""
        self._without_drafts = self._probe = self._tries = 0

    def restart(self, gain: int, *, probe: int = 0) -> None:
        """Before the first step. gain: of steps without a report. probe: number of steps that verify no drafts after which `WINDOW`
        reports have at least that gain; 0 if none ever do."""
        self._start, self._probe = gain, probe
        self._reports.clear()
        self._without_drafts = self._tries = 0

    def read(self) -> None:
        """Adds a step that the host has read. Without a report of its own, the last report remains valid."""
        if self._reports:
            self._reports.append(self._reports[-1])
            del self._reports[: -(LAG + WINDOW - 1)]

    def report(self, gain: int, *, verifies: bool) -> None:
        """By the step that was read last. verifies: whether it verified drafts."""
        self._without_drafts = 0 if verifies else self._without_drafts + 1
        if self._probe and self._without_drafts == self._probe:
            self._without_drafts, self._probe, self._tries = 0, 2 * self._probe, WINDOW
        if self._tries:
            self._tries, gain = self._tries - 1, max(gain, self._start)
        self._reports[-1:] = [gain]  # the first has no place yet

    def gain(self, steps_in_flight: int) -> int:
        """The gain of the next step. steps_in_flight: of the request, fewer than `LAG`."""
        known = len(self._reports) + steps_in_flight + 1 - LAG
        if known <= 0:
            return self._start
        counted = self._reports[max(known - WINDOW, 0) : known]
        return sum(counted) // len(counted)
