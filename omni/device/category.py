"""What a phase is for: how a timeline groups phases, whatever their stage calls them."""

from collections.abc import Mapping
from enum import Enum


class PhaseCategory(Enum):
    """The value is the name in reports."""

    PREPROCESS = "preprocess"
    """The inputs of a step: rows, tables, positions, input embeddings."""
    FORWARD = "forward"
    LOGITS = "logits"
    SAMPLE = "sample"
    TOKEN_POINT = "token point"
    """No work, but a moment: the tokens are there, for the next step and for the host."""
    CODES = "code prediction"
    POSTPROCESS = "postprocess"
    PAYLOAD = "payload"
    """What is made for other stages, or taken from them."""
    SCORES = "scores"
    COPIES = "copies"
    """Other copies between host and device."""
    OTHER = "other"


_declared: dict[str, PhaseCategory] = {}


def declare_categories(categories: Mapping[str, PhaseCategory]) -> None:
    """Says what phases are for, by name, for whoever launches them: at import. Names are shared by all stages.

    Raises ValueError for a name that stands for something else already.
    """
    for phase, category in categories.items():
        known = _declared.setdefault(phase, category)
        if known is not category:
            problem = f"is declared {category.value!r} and {known.value!r}"
            raise ValueError(f"phase {phase!r} {problem}; give one of the two phases another name")


def category_of(phase: str) -> PhaseCategory:
    """What a phase was declared to be for; `OTHER` for those that nobody declared."""
    return _declared.get(phase, PhaseCategory.OTHER)


declare_categories(
    {
        "copy_upload": PhaseCategory.COPIES,
        "copy_weight": PhaseCategory.COPIES,
        "copy_window": PhaseCategory.COPIES,
    }
)
