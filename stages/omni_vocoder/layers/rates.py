"""Numbers of samples of codec frames, and their delay."""

import math
from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True, slots=True)
class UpsamplingRates:
    """Factors by which a signal is stretched, in order. plain: without lookahead.

    looking_ahead: of later convolutions, each of which removes `rate` samples from the beginning, like
    `SnakeUpsampling`.
    """

    plain: tuple[int, ...]
    looking_ahead: tuple[int, ...] = ()

    @property
    def samples_per_frame(self) -> int:
        return math.prod(self.plain) * math.prod(self.looking_ahead)

    @property
    def lookahead(self) -> int:
        """Number of samples at the end of n frames that depend on frame n + 1.

        A convolution of rate r turns L samples into (L - 1) r: a shortfall of s samples grows to (s + 1) r.
        """
        shortfall = 0
        for rate in self.looking_ahead:
            shortfall = (shortfall + 1) * rate
        return shortfall

    @property
    def min_first_frames(self) -> int:
        """Minimum frames that can start a stream: every convolution needs at least one sample."""
        return next(frames for frames in count(1) if self._reaches_the_end(frames))

    def _reaches_the_end(self, frames: int) -> bool:
        length = frames * math.prod(self.plain)
        for rate in self.looking_ahead:
            if length < 1:
                return False
            length = (length - 1) * rate
        return True
