"""What a stage takes that reads code frames."""

import msgspec


class CodeFrames(msgspec.Struct, frozen=True, kw_only=True):
    """Input: the next `count` codec frames of a request.

    The payload's tensor `codes`, int64, is a page slice of `count` rows of G code groups, or a tensor `[count, G]`.
    """

    count: int
