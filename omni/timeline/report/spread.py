"""Statistics of a duration over many samples."""

from collections.abc import Sequence

import msgspec
import numpy as np


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Microseconds: percentiles, with linear interpolation, and the sum. count: number of values."""

    count: int
    p50: float
    p90: float
    p99: float
    total: float

    @classmethod
    def of(cls, nanoseconds: Sequence[int]) -> "Spread | None":
        """None if there are no values."""
        if not nanoseconds:
            return None
        values = np.asarray(nanoseconds, np.float64) / 1000
        p50, p90, p99 = (float(value) for value in np.percentile(values, [50, 90, 99]))
        return cls(count=len(nanoseconds), p50=p50, p90=p90, p99=p99, total=float(values.sum()))
