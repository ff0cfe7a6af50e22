"""Settings of an encoder stage. Torch-free, so that pipelines can be built and explained without it."""

import msgspec

_LENGTHS = (64, 128, 256, 384, 512, 768, 1024)
"""Captured if a user leaves the choice open: up to a picture of a megapixel, or 78 seconds of sound."""


class EncoderOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of stage kind `"encoder"`.

    max_batch_items: media items encoded at once.
    max_batch_length: embeddings they become in all (`MediaItem.length`); a longer item is refused.
    cache_bytes: device memory for outputs kept in case the same media comes again; 0 keeps none.
    graph_lengths: embeddings of the batches that are captured at start, where graphs are on (`engine.graphs`). A shorter batch is
        padded to the next; a longer one runs uncaptured, and so do media that the model cannot pad. None takes sizes up to those
        of a large picture.
    held_bytes: device memory for outputs that requests still need. While it is used up, nothing is encoded but for the request
        that is served first of all that need any.
    """

    max_batch_items: int = 8
    max_batch_length: int = 16384
    cache_bytes: int = 256 * 1024 * 1024
    held_bytes: int = 512 * 1024 * 1024
    graph_lengths: tuple[int, ...] | None = None

    @property
    def captured_lengths(self) -> tuple[int, ...]:
        """What is captured where graphs are on, the largest first: what a smaller batch allocates fits where a larger one's was."""
        lengths = self.graph_lengths
        if lengths is None:
            lengths = tuple(min(length, self.max_batch_length) for length in _LENGTHS)
        return tuple(sorted(set(lengths), reverse=True))

    def __post_init__(self) -> None:
        if self.max_batch_items < 1:
            raise ValueError("max_batch_items must be at least 1")
        if self.max_batch_length < 1:
            raise ValueError("max_batch_length must be at least 1")
        if self.cache_bytes < 0:
            raise ValueError("cache_bytes must be at least 0")
        if self.held_bytes < 1:
            raise ValueError("held_bytes must be at least 1")
        if any(not 1 <= length <= self.max_batch_length for length in self.graph_lengths or ()):
            raise ValueError(f"graph_lengths must be at least 1, at most max_batch_length, {self.max_batch_length}")
