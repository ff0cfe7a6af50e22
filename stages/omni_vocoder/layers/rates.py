"""Numbers of samples of codec frames, and their delay."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UpsamplingRates:
    """Factors by which a signal is stretched, in order. plain: without lookahead. looking_ahead: of later convolutions, each of
    which removes `rate` samples from the beginning, like `SnakeUpsampling`."""

    plain: tuple[int, ...]
    looking_ahead: tuple[int, ...] = ()

    @property
    def samples_per_frame(self) -> int:
        return math.prod(self.plain) * math.prod(self.looking_ahead)

    @property
    def lookahead(self) -> int:
        """Number of samples at the end of n frames that depend on frame n + 1. A convolution of rate r turns L samples into (L - 1)
        r: a shortfall of s samples grows to (s + 1) r."""
        shortfall = 0
        for rate in self.looking_ahead:
            shortfall = (shortfall + 1) * rate
        return shortfall

    @property
    def min_first_frames(self) -> int:
        """Minimum frames that can start a stream: every convolution needs at least one sample."""
        needed = 0
        for rate in reversed(self.looking_ahead):
            needed = -(-needed // rate) + 1
        return max(-(-needed // math.prod(self.plain)), 1)
