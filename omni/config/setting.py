"""A setting and its origin."""

import msgspec

DEFAULT = "default"
"""The origin of a default of the options' type."""
FAMILY = "family"
"""The origin of the model family's value for this checkpoint."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """path: dotted, as `"thinker.sampling.top_k"`. origin: `DEFAULT`, `FAMILY`, or that of the last `Layer` with it."""

    path: str
    value: object
    origin: str
