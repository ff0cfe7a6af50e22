"""The host's record of a request at a vocoder stage, and the sizes of its chunks."""

from dataclasses import dataclass

from omni_frames import FrameRequest
from omni_vocoder.model import StateT, VocoderModel
from omni_vocoder.options import VocoderOptions


@dataclass(frozen=True, slots=True)
class ChunkSizes:
    """Frames of a request's first chunk and of each later one. fewest: the minimum of the model's first chunk."""

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


@dataclass(slots=True, eq=False)
class VocoderRequest(FrameRequest):
    """A request from `Open` to its end. started: whether its first chunk has been launched."""

    started: bool = False

    def next_chunk(self, sizes: ChunkSizes) -> int:
        """Number of frames to decode now; 0 if no chunk is ready."""
        wanted, fewest = (sizes.later, 1) if self.started else (sizes.first, sizes.fewest)
        if self.in_flight or self.buffered < (fewest if self.ended else wanted):
            return 0
        return min(wanted, self.buffered)
