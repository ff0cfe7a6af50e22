"""A setting as it results, and where it came from."""

import msgspec

DEFAULT = "default"
"""The origin of a value that the options' own type gives."""
FAMILY = "family"
"""The origin of a value that the model family chose for this checkpoint."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """path: dotted, `"thinker.sampling.top_k"`. origin: `DEFAULT`, `FAMILY`, or that of the `Layer` that set it last."""

    path: str
    value: object
    origin: str
