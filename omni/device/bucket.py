"""What a phase is for: how a timeline groups phases, whatever their stage calls them."""

from collections.abc import Mapping
from enum import Enum


class Bucket(Enum):
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


_declared: dict[str, Bucket] = {}


def declare_buckets(buckets: Mapping[str, Bucket]) -> None:
    """Says what phases are for, by name, for whoever launches them: at import. Names are shared by all stages.

    Raises ValueError for a name that stands for something else already.
    """
    for phase, bucket in buckets.items():
        known = _declared.setdefault(phase, bucket)
        if known is not bucket:
            problem = f"is declared {bucket.value!r} and {known.value!r}"
            raise ValueError(f"phase {phase!r} {problem}; give one of the two phases another name")


def bucket_of(phase: str) -> Bucket:
    """What a phase was declared to be for; `OTHER` for those that nobody declared."""
    return _declared.get(phase, Bucket.OTHER)


declare_buckets(
    {
        "copy_upload": Bucket.COPIES,
        "copy_weight": Bucket.COPIES,
        "copy_window": Bucket.COPIES,
        "copy_piece": Bucket.PAYLOAD,
        "gather_piece": Bucket.PAYLOAD,
    }
)
