"""Checks tokenizer files where libraries read without bounds, or report errors without a name."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from omni.checkpoint.json_file import MAX_BYTES, MAX_TABLE_BYTES, read_as, read_object
from omni.checkpoint.regular_file import is_file
from omni.errors import CheckpointError, quoted

MAX_ADDED = 100_000
"""Added tokens: each is searched for in every text. Published tokenizers have up to 6,000."""
MAX_ID = 2**22
"""Largest size of a vocabulary."""

_Id = Annotated[int, Meta(ge=0, lt=MAX_ID)]


class _Added(msgspec.Struct):
    content: Annotated[str, Meta(min_length=1, max_length=4096)]
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    single_word: bool = False


class _Numbered(_Added, kw_only=True):
    id: _Id


class _Tokenizer(msgspec.Struct):
    """Checked fields of tokenizer.json; the tokenizers library reports the line of other errors."""

    added_tokens: Annotated[list[_Numbered], Meta(max_length=MAX_ADDED)] | None = None


class _Config(msgspec.Struct):
    """Checked fields of tokenizer_config.json."""

    added_tokens_decoder: dict[str, _Added] | None = None
    add_prefix_space: bool | None = None
    split_special_tokens: bool | None = None
    clean_up_tokenization_spaces: bool | None = None
    tokenizer_class: str | None = None


def check_tokenizer_files(folder: Path) -> None:
    """Raises CheckpointError, naming the field, for values that no tokenizer can use or that take it long, and if
    tokenizer_config.json is missing."""
    config = folder / "tokenizer_config.json"
    read_object(config)
    for place in read_as(config, _Config, MAX_BYTES).added_tokens_decoder or ():
        if not place.isascii() or not place.isdigit() or len(place) > 8 or int(place) >= MAX_ID:
            problem = f"{quoted(place)} is no id from 0 to {MAX_ID - 1:,}"
            raise CheckpointError(f"{config.name}: added_tokens_decoder", problem, "download the file again")
    whole = folder / "tokenizer.json"
    if is_file(whole):
        read_as(whole, _Tokenizer, MAX_TABLE_BYTES)
    for name in ("vocab.json", "added_tokens.json"):
        if is_file(folder / name):
            _check_ids(folder / name)


def _check_ids(path: Path) -> None:
    ids: Any = read_as(path, dict[str, _Id], MAX_TABLE_BYTES)
    if len(ids) > MAX_ID:
        raise CheckpointError(path.name, f"names {len(ids):,} tokens, above {MAX_ID:,}", "download the file again")
