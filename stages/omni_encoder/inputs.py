"""What an encoder stage takes. It gives `omni.payload.Encoded`."""

from collections.abc import Mapping, Sequence

import msgspec

from omni.frontend.media import Media
from omni.payload import Encoded, Payload

__all__ = ["Encoded", "MediaItem", "media_items"]


class MediaItem(msgspec.Struct, frozen=True, kw_only=True):
    """Input: one piece of media. The payload's tensors are its features, as the model's `plan` wants them.

    Features are contiguous, on the host or on the stage's device. From the host they go through pinned memory, a piece at a time.

    index: which of the request's items it is; comes back in `Encoded`.
    key: hash of the content; items with equal keys have equal outputs, and are encoded once.
    batch_key: items with different keys never share a batch.
    length: how many embeddings it becomes; what `EncoderOptions.max_batch_length` adds up.
    field: how errors name it: its path in the messages of the request.
    """

    index: int
    key: str
    batch_key: int
    length: int
    field: str = ""


def media_items(media: Mapping[str, Sequence[Media]]) -> dict[str, list[Payload]]:
    """What a front end made of a request's media, as inputs of encoder stages, by their name; of none, none."""
    return {
        stage: [
            Payload(
                MediaItem(index=index, key=each.key, batch_key=each.batch_key, length=each.length, field=each.field),
                each.tensors,
            )
            for index, each in enumerate(pieces)
        ]
        for stage, pieces in media.items()
        if pieces
    }
