"""What the host knows of one request at the vocoder."""

from dataclasses import dataclass

from omni_frames import FrameRequest
from omni_vocoder.chunks import ChunkSizes


@dataclass(slots=True, eq=False)
class VocoderRequest(FrameRequest):
    """A request from `Open` to its end. started: its first chunk was decoded, or is being so."""

    started: bool = False

    def finished(self, sizes: ChunkSizes) -> bool:
        """Whether there is nothing left to wait for."""
        return self.ended and not self.in_flight and not self.next_chunk(sizes)

    def next_chunk(self, sizes: ChunkSizes) -> int:
        """How many frames to decode now; 0 if it is not time, or will never be."""
        wanted, fewest = (sizes.later, 1) if self.started else (sizes.first, sizes.fewest)
        if self.in_flight or self.buffered < (fewest if self.ended else wanted):
            return 0
        return min(wanted, self.buffered)

    def consume(self, frames: int, capacity: int) -> None:
        """A step that decodes the oldest `frames` frames has been launched."""
        self.forget(frames, capacity)
        self.done += frames
        self.started, self.alone = True, False
