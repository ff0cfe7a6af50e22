"""Draws steps of a trace, or of several traces one above the other on one scale."""

from omni.timeline.picture.draw import Window, draw, window_of

__all__ = ["Window", "draw", "window_of"]
