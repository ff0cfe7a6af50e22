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
    """Frames of a request's first chunk and of each later one. fewest: the least that the model can begin with."""

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
        """Frames of a request that wait on the device: they leave the producer's memory before it is their turn."""
        return 4 * self.largest
