"""Results of candidates against plain torch: one that is wrong is not timed, and ends the search."""

from torch import Tensor

_ROUNDING = 0.02
"""A relative distance that rounding in half precision stays below."""


def distance(ours: Tensor, expected: Tensor) -> float:
    """Relative, in the Euclidean norm. Waits for the device."""
    return float((ours.float() - expected.float()).norm() / expected.float().norm())


def refuse_wrong(error: float, candidate: object, most: float = _ROUNDING) -> float:
    """Gives `error` back. Ends the script unless it is below `most`, as NaN is not."""
    if not error < most:
        raise SystemExit(f"wrong by {error:.3g}: {candidate}")
    return error
