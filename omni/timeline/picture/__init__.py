"""Draws steps of a trace, or of several traces one above the other on one scale."""

from omni.timeline.picture.draw import Excerpt, draw, excerpt_of

__all__ = ["Excerpt", "draw", "excerpt_of"]
