"""Draws a pipeline with the characters of a terminal."""

from omni.cli.drawing.draw import draw

__all__ = ["draw"]
