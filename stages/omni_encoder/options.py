"""Settings of an encoder stage. Torch-free, so that pipelines can be built and explained without it."""

import msgspec

_LENGTHS = (64, 128, 256, 384, 512, 768, 1024)
"""Default captured lengths: up to a picture of a megapixel, or 78 seconds of sound."""


class EncoderOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of stage kind `"encoder"`.

    max_batch_items: maximum media items of a batch.
    max_batch_length: maximum embeddings of a batch (the sum of `MediaItem.length`); a longer item is refused.
    cache_bytes: device memory for the cache of outputs; 0 disables it.
    graph_lengths: numbers of embeddings for which batches are captured, where graphs are on (`engine.graphs`).
        A shorter batch is padded to the next length, on a CUDA device also without graphs; a longer one is not padded
        and runs uncaptured, as do media that the model cannot pad. None takes lengths up to that of a large picture.
    held_bytes: device memory for outputs that requests still need. While it is used up, only items of the request of
        first request in serving order with such outputs are encoded.
    """

    max_batch_items: int = 8
    max_batch_length: int = 16384
    cache_bytes: int = 256 * 1024 * 1024
    held_bytes: int = 512 * 1024 * 1024
    graph_lengths: tuple[int, ...] | None = None

    @property
    def captured_lengths(self) -> tuple[int, ...]:
        """The lengths to capture, the largest first: a smaller batch fits into the memory of a larger one."""
        lengths = self.graph_lengths
        if lengths is None:
            lengths = tuple(min(length, self.max_batch_length) for length in _LENGTHS)
        return tuple(sorted(set(lengths), reverse=True))

    def __post_init__(self) -> None:
        given = msgspec.structs.asdict(self)
        for name, least in {"max_batch_items": 1, "max_batch_length": 1, "cache_bytes": 0, "held_bytes": 1}.items():
            if given[name] < least:
                raise ValueError(f"{name} must be at least {least}")
        if any(not 1 <= length <= self.max_batch_length for length in self.graph_lengths or ()):
            raise ValueError(f"graph_lengths must be at least 1, at most max_batch_length, {self.max_batch_length}")
