"""Draws a pipeline with characters."""

from omni.cli.drawing.draw import draw

__all__ = ["draw"]
