"""The kinds of distributions that `omni new` writes."""

from enum import StrEnum


class Kind(StrEnum):
    """Kind of plugin in a distribution. Its templates are in the folder of this name."""

    FAMILY = "family"
    STAGE = "stage"
    CONNECTOR = "connector"
    PROCESSOR = "processor"
    DRAFTER = "drafter"
