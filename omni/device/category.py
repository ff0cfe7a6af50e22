"""Phase categories: the kinds of work by which a timeline groups the phases of all stages."""

from collections.abc import Mapping
from enum import Enum


class PhaseCategory(Enum):
    """Values are the names in reports."""

    PREPROCESS = "preprocess"
    """The inputs of a step: rows, tables, positions, input embeddings."""
    FORWARD = "forward"
    LOGITS = "logits"
    SAMPLE = "sample"
    TOKEN_POINT = "token point"
    """A moment without work: the tokens are complete, for the next step and for the host."""
    CODES = "code prediction"
    POSTPROCESS = "postprocess"
    PAYLOAD = "payload"
    """Payloads made for other stages, or received from them."""
    SCORES = "scores"
    COPIES = "copies"
    """Other copies between host and device."""
    OTHER = "other"


_declared: dict[str, PhaseCategory] = {}


def declare_categories(categories: Mapping[str, PhaseCategory]) -> None:
    """Declares the categories of phases by name, at import. Raises ValueError for a name with another category."""
    for phase, category in categories.items():
        known = _declared.setdefault(phase, category)
        if known is not category:
            problem = f"is declared {category.value!r} and {known.value!r}"
            raise ValueError(f"phase {phase!r} {problem}; give one of the two phases another name")


def category_of(phase: str) -> PhaseCategory:
    """The declared category of a phase; `OTHER` without a declaration."""
    return _declared.get(phase, PhaseCategory.OTHER)


declare_categories(
    {
        "copy_upload": PhaseCategory.COPIES,
        "copy_weight": PhaseCategory.COPIES,
        "copy_window": PhaseCategory.COPIES,
    }
)
