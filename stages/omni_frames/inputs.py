"""What a stage takes that reads code frames."""

import msgspec
import numpy as np
from numpy.typing import NDArray


class CodeFrames(msgspec.Struct, frozen=True, kw_only=True):
    """Input: the next `count` codec frames of a request.

    The payload's tensor `codes`, int64, is a page slice of `count` rows of G code groups, or a tensor `[count, G]`.
    codes: what the host knows already, int64 `[count, G]`; the payload then has no tensor.
    """

    count: int
    codes: NDArray[np.int64] | None = None
