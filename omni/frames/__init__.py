"""Code frames on their way from a producer's memory into the rows of a stage that reads them."""

from omni.frames.arrival import Arrival, read_arrival
from omni.frames.inputs import CodeFrames
from omni.frames.reader import FrameReader
from omni.frames.rows import RowQueue
from omni.frames.store import FrameStore

__all__ = ["Arrival", "CodeFrames", "FrameReader", "FrameStore", "RowQueue", "read_arrival"]
