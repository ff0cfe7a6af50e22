"""Code frames on their way from a producer's memory into the rows of a stage that reads them, and samples on their way out."""

from omni_frames.inputs import Arrival, CodeFrames, read_arrival
from omni_frames.request import FrameRequest, RowQueue
from omni_frames.samples import MAX_IN_FLIGHT, SampleBatch, SampleRing
from omni_frames.store import FrameStore
from omni_frames.worker import FrameModel, FrameWorker

__all__ = [
    "MAX_IN_FLIGHT",
    "Arrival",
    "CodeFrames",
    "FrameModel",
    "FrameRequest",
    "FrameStore",
    "FrameWorker",
    "RowQueue",
    "SampleBatch",
    "SampleRing",
    "read_arrival",
]
