"""The sizes of chunks: a stream's first one is short, later ones grow with the sound that lies ahead of its listener."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from omni_frames.request import FrameRequest
from omni_vocoder.model import StateT, VocoderModel
from omni_vocoder.options import VocoderOptions

_FIRST_GROWING, _FIRST = 4, 10
"""Default frames of a first chunk. If the second chunk has the full size, the first must last until the frames of the second have
arrived."""
_GROWTH = 2.5
"""Growth factor of consecutive sizes. Each size has graphs of its own."""
_LEAST_GROWTH = 1.5
_PACE = 0.5
"""Expected time, in seconds, for the frames of a second of sound to arrive, for the choice of a longer chunk. If frames arrive more
slowly, slack shrinks meanwhile, and the stream takes a smaller size before it underruns."""


class ChunkShape(NamedTuple):
    """The properties that chunks of one step share: their frames, and whether they are the first of their requests. A request's
    last chunk may have fewer frames, and is padded to the shape's."""

    frames: int
    first: bool


@dataclass(frozen=True, slots=True)
class ChunkSizes:
    """The possible numbers of frames of a chunk. first: for a request's first chunk. later: for its other chunks, ascending; the
    last is `VocoderOptions.chunk_frames`. fewest: the fewest frames of a first chunk that the model takes. frame_seconds: the
    length of a frame's sound."""

    first: int
    later: tuple[int, ...]
    fewest: int
    frame_seconds: float = 0.0

    @classmethod
    def of(cls, options: VocoderOptions, model: VocoderModel[StateT], *, grow: bool = False) -> "ChunkSizes":
        """grow: whether later chunks begin with the size of the first; else all have `chunk_frames`."""
        fewest, most = model.min_first_frames, options.chunk_frames
        first = options.first_chunk_frames or (_FIRST_GROWING if grow else _FIRST)
        later = _growing(first, most) if grow else (most,)
        seconds = model.samples(1, False) / model.sample_rate
        return cls(max(first, fewest), later, fewest, seconds)

    @property
    def shapes(self) -> tuple[ChunkShape, ...]:
        return (ChunkShape(self.first, True), *(ChunkShape(size, False) for size in self.later))

    @property
    def largest(self) -> int:
        return max(self.first, self.later[-1])

    @property
    def capacity(self) -> int:
        """Waiting frames of a request on the device, copied in advance to free the producer's memory."""
        return 4 * self.largest

    def next_chunk(self, request: FrameRequest, slack: float = math.inf) -> ChunkShape | None:
        """The next chunk; None while its frames have not arrived. slack: of the request's listener, in seconds."""
        if request.in_flight:
            return None
        if not request.done:
            wanted, least = self.first, self.fewest
        else:
            wanted, least = self._later(request.buffered, slack), 1
        if request.buffered < (least if request.ended else wanted):
            return None
        return ChunkShape(wanted, not request.done)

    def _later(self, buffered: int, slack: float) -> int:
        """The largest size whose missing frames are expected before an underrun of the listener, or else the smallest."""
        if slack == math.inf:
            return self.later[-1]
        soon = max(0.0, slack) / (self.frame_seconds * _PACE) if self.frame_seconds else math.inf
        return max((size for size in self.later if size - buffered <= soon), default=self.later[0])


def _growing(first: int, most: int) -> tuple[int, ...]:
    sizes = [min(first, most)]
    while sizes[-1] * _GROWTH * _LEAST_GROWTH <= most:
        sizes.append(int(sizes[-1] * _GROWTH))
    return tuple(dict.fromkeys([*sizes, most]))
