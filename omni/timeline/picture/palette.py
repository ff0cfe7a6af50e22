"""Colours of the picture. Phase categories differ in hue and in lightness."""

from omni.device import PhaseCategory

INK = "#222222"
FAINT = "#8a8a8a"
LANE = "#f4f4f4"
HOST = "#d5d9de"
PAPER = "#ffffff"
GAP, GAP_EDGE, GAP_INK = "#fde4e1", "#e5534b", "#b3261e"
BAND = "#fdf1ef"
POINT = "#111111"

# The token point is a triangle, not a box.
CATEGORIES = {
    PhaseCategory.PREPROCESS: "#8fb8de",
    PhaseCategory.FORWARD: "#2f5d9b",
    PhaseCategory.LOGITS: "#1b998b",
    PhaseCategory.SAMPLE: "#7fb069",
    PhaseCategory.CODES: "#7b4bb3",
    PhaseCategory.POSTPROCESS: "#c98bbd",
    PhaseCategory.PAYLOAD: "#ef8a3c",
    PhaseCategory.TRANSFER: "#d9b44a",
    PhaseCategory.SCORES: "#9a6b4f",
    PhaseCategory.COPIES: "#a9b0b8",
    PhaseCategory.OTHER: "#6b6b6b",
}


def ink_on(fill: str) -> str:
    """The colour of legible text on `fill`."""
    red, green, blue = (int(fill[place : place + 2], 16) for place in (1, 3, 5))
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else PAPER
