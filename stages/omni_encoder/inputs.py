"""What an encoder stage takes and gives."""

import msgspec


class MediaItem(msgspec.Struct, frozen=True, kw_only=True):
    """Input: one piece of media. The payload's tensors are its features, as the model's `plan` wants them.

    Features are contiguous, on the host or on the stage's device. From the host they go through pinned memory, a piece at a time.

    index: which of the request's items it is; comes back in `Encoded`.
    key: hash of the content; items with equal keys have equal outputs, and are encoded once.
    batch_key: items with different keys never share a batch.
    length: how many embeddings it becomes; what `EncoderOptions.max_batch_length` adds up.
    """

    index: int
    key: str
    batch_key: int
    length: int


class Encoded(msgspec.Struct, frozen=True, kw_only=True):
    """Output: the payload's tensors are what `encode` gave for the item of this index. Shared, so not to be written."""

    index: int
