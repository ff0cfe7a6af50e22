"""What a vocoder stage takes. It gives `omni.chunks.AudioChunk`."""

from omni.frames import CodeFrames

__all__ = ["CodeFrames"]
