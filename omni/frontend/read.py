"""A chat with media, in tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from omni.frontend.media import Ids, Media
from omni.media import content_hash


@dataclass(frozen=True, slots=True)
class Read:
    """A chat as the text model reads it.

    ids_T: int64. positions_3T: int64, rotary, and next_position: that of the token after them. media: by kind, `"audio"` and
    `"image"`, in order; places: the positions of each piece in `ids_T`.
    """

    ids_T: Ids
    positions_3T: Ids
    next_position: int
    media: Mapping[str, Sequence[Media]]
    places: Mapping[str, Sequence[Ids]]

    def prefix_key(self) -> str:
        """Says all that hidden states at the media depend on: the prompt up to the last piece."""
        end = max((int(each[-1]) + 1 for pieces in self.places.values() for each in pieces), default=0)
        read = (np.ascontiguousarray(self.ids_T[:end]), np.ascontiguousarray(self.positions_3T[:, :end]))
        return "-".join([*map(content_hash, read), *(each.key for pieces in self.media.values() for each in pieces)])
