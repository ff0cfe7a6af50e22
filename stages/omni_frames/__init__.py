"""Transfer of code frames from a producer's memory into a consumer's rows, and of samples to the host."""

from omni_frames.request import Arrival, CodeFrames, FrameRequest
from omni_frames.store import MAX_IN_FLIGHT, FrameStore, SampleBatch, SampleRing
from omni_frames.worker import FrameModel, FrameWorker

__all__ = [
    "MAX_IN_FLIGHT",
    "Arrival",
    "CodeFrames",
    "FrameModel",
    "FrameRequest",
    "FrameStore",
    "FrameWorker",
    "SampleBatch",
    "SampleRing",
]
