"""Settings of an encoder stage. Torch-free, so that pipelines can be built and explained without it."""

import msgspec


class EncoderOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of stage kind `"encoder"`.

    max_batch_items: media items encoded at once.
    max_batch_length: embeddings they become in all (`MediaItem.length`); a longer item is refused.
    cache_bytes: device memory for outputs kept in case the same media comes again; 0 keeps none.
    held_bytes: device memory for outputs that requests still need. While it is used up, nothing is encoded but for the request
        that is served first of all that need any.
    """

    max_batch_items: int = 8
    max_batch_length: int = 16384
    cache_bytes: int = 256 * 1024 * 1024
    held_bytes: int = 512 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.max_batch_items < 1:
            raise ValueError("max_batch_items must be at least 1")
        if self.max_batch_length < 1:
            raise ValueError("max_batch_length must be at least 1")
        if self.cache_bytes < 0:
            raise ValueError("cache_bytes must be at least 0")
        if self.held_bytes < 1:
            raise ValueError("held_bytes must be at least 1")
