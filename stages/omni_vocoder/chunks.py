"""Sizes of chunks."""

from dataclasses import dataclass

from omni_vocoder.model import StateT, VocoderModel
from omni_vocoder.options import VocoderOptions


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """The properties that chunks of one step share: their frames, and whether they are the first of their requests."""

    frames: int
    first: bool


@dataclass(frozen=True, slots=True)
class ChunkSizes:
    """Frames of a request's first chunk and of each later one. fewest: minimum frames of a first chunk for the
    model."""

    first: int
    later: int
    fewest: int

    @classmethod
    def of(cls, options: VocoderOptions, model: VocoderModel[StateT]) -> "ChunkSizes":
        fewest = model.min_first_frames
        return cls(max(options.first_chunk_frames, fewest), options.chunk_frames, fewest)

    @property
    def largest(self) -> int:
        return max(self.first, self.later)

    @property
    def capacity(self) -> int:
        """Waiting frames of a request on the device, copied in advance to free the producer's memory."""
        return 4 * self.largest
