"""Settings of a stage of this kind, which `--set STAGE.max_rows=64` changes. Torch-free, as pipelines are."""

import msgspec


class ScorerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of stage kind `"scorer"`.

    max_rows: maximum rows of an input; a longer one is refused.
    max_in_flight: maximum inputs on the device.
    """

    max_rows: int = 1024
    max_in_flight: int = 2

    def __post_init__(self) -> None:
        for name, value in (("max_rows", self.max_rows), ("max_in_flight", self.max_in_flight)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1")
