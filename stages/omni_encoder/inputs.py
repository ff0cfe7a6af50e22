"""Inputs of an encoder stage. Its output is `omni.payload.Encoded`."""

from collections.abc import Mapping, Sequence

import msgspec

from omni.frontend.media import Media
from omni.payload import Encoded, Payload

__all__ = ["Encoded", "MediaItem", "media_items"]


class MediaItem(msgspec.Struct, frozen=True, kw_only=True):
    """Input: one piece of media. The payload's tensors are its features, as expected by the model's `plan`: contiguous, on the
    stage's device or on the host, from where they are copied through pinned memory, a piece at a time.

    index: number of the item in its request; returned in `Encoded`. key: hash of the content; items with equal keys have equal
    outputs, and are encoded once. batch_key: items with different keys never share a batch. length: number of its embeddings,
    limited per batch by `EncoderOptions.max_batch_length`. field: its name in errors, the path in the request's messages.
    """

    index: int
    key: str
    batch_key: int
    length: int
    field: str = ""


def media_items(media: Mapping[str, Sequence[Media]]) -> dict[str, list[Payload]]:
    """The inputs of encoder stages, by stage name, for a request's media from the front end; empty without media."""
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
