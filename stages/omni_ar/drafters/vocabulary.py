"""Whether the ids of a drafter are those of its stage: sizes of one family pad the same vocabulary differently."""

from typing import Any

import msgspec

from omni.checkpoint import Checkpoint
from omni.checkpoint.json_file import MAX_TABLE_BYTES, read_as
from omni.checkpoint.regular_file import is_file
from omni.errors import ConfigError
from omni_ar.drafters.base import DraftSetup

WHOLE, TABLE = "tokenizer.json", "vocab.json"
"""The files that may have a table of ids; the second counts only without the first."""


def check_tables(field: str, checkpoint: Checkpoint, vocab_size: int, setup: DraftSetup) -> bool:
    """Whether the tokenizers of a drafter's checkpoint and of its stage have tables of ids; raises ConfigError if these differ, or
    have ids that the drafter lacks. vocab_size: of the drafter."""
    own, theirs = table_of(setup.context.checkpoint), table_of(checkpoint)
    if own is None or theirs is None:
        return False
    if own != theirs:
        token = min(token for token in own.keys() | theirs.keys() if own.get(token) != theirs.get(token))
        ids = " and ".join("no id" if given is None else f"id {given}" for given in (theirs.get(token), own.get(token)))
        stage = setup.context.stage.name
        problem = f"the tokenizer of {checkpoint.path} differs from that of stage {stage!r}: {token!r} has {ids}"
        raise ConfigError(field, problem, "use a model with the stage's vocabulary")
    if own and max(own.values()) >= vocab_size:
        problem = (
            f"{checkpoint.path} has {vocab_size:,} token ids, and its tokenizer has those up to {max(own.values()):,}"
        )
        raise ConfigError(field, problem, "use a model with all ids of its tokenizer")
    return True


class _Model(msgspec.Struct):
    vocab: Any = None


class _Tokenizer(msgspec.Struct):
    """The part of tokenizer.json that is compared; published ones have hundreds of thousands of values."""

    model: _Model = msgspec.field(default_factory=_Model)


def table_of(checkpoint: Checkpoint) -> dict[str, int] | None:
    """The ids of the tokenizer's tokens, without added tokens; None if no file has a table of them."""
    whole, table = checkpoint.path / WHOLE, checkpoint.path / TABLE
    if is_file(whole):
        vocabulary = read_as(whole, _Tokenizer, MAX_TABLE_BYTES).model.vocab
        is_table = isinstance(vocabulary, dict) and all(isinstance(each, int) for each in vocabulary.values())
        return vocabulary if is_table else None
    return read_as(table, dict[str, int], MAX_TABLE_BYTES) if is_file(table) else None
