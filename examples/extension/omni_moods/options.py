"""Settings of the two stages. Torch-free, as pipelines are."""

import msgspec


class QuietOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """volume: factor of every sample."""

    volume: float = 0.5


class MoodOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """moods: names of the classes."""

    moods: tuple[str, ...] = ("calm", "glad", "sad")
