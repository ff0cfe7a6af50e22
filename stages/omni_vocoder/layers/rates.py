"""How many samples codec frames become, and when."""

import math
from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True, slots=True)
class UpsamplingRates:
    """Factors by which a signal is stretched, in order.

    plain: without lookahead. looking_ahead: by convolutions behind these, each of which cuts `rate` samples off the beginning, as
    `SnakeUpsampling` does: it looks one of its inputs ahead.
    """

    plain: tuple[int, ...]
    looking_ahead: tuple[int, ...] = ()

    @property
    def samples_per_frame(self) -> int:
        return math.prod(self.plain) * math.prod(self.looking_ahead)

    @property
    def lookahead(self) -> int:
        """Samples at the end of n frames that frame n + 1 still decides.

        A convolution of rate r turns L samples into (L - 1) r: a shortfall of s samples grows to (s + 1) r.
        """
        shortfall = 0
        for rate in self.looking_ahead:
            shortfall = (shortfall + 1) * rate
        return shortfall

    @property
    def min_first_frames(self) -> int:
        """Fewest frames that can start a stream: every convolution must see a sample."""
        return next(frames for frames in count(1) if self._reaches_the_end(frames))

    def _reaches_the_end(self, frames: int) -> bool:
        length = frames * math.prod(self.plain)
        for rate in self.looking_ahead:
            if length < 1:
                return False
            length = (length - 1) * rate
        return True
