"""Tokenizers, chat templates and processors of transformers, from a checkpoint folder.

Their files are checked first, where libraries read without bounds or check, or report errors without a name.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from omni.checkpoint.checks import OTHER_MODEL
from omni.checkpoint.json_file import MAX_BYTES, MAX_TABLE_BYTES, read_as, read_object, read_optional_object
from omni.checkpoint.regular_file import is_file, read_text
from omni.errors import CheckpointError, quoted, shortened
from omni.frontend.template import MAX_SOURCE, ChatTemplate

MAX_ADDED = 100_000
"""Added tokens: each is searched for in every text. Published tokenizers have up to 6,000."""
MAX_ID = 2**22
"""Largest size of a vocabulary."""

_Id = Annotated[int, Meta(ge=0, lt=MAX_ID)]
_Count = Annotated[int, Meta(ge=1, le=2**31)]
_Side = Annotated[int, Meta(ge=1, le=1024)]
_Real = Annotated[float, Meta(ge=-1e6, le=1e6)]
_Positive = Annotated[float, Meta(gt=0, le=1e6)]
_Size = Annotated[int, Meta(ge=1, le=2**16)]


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
    """Raises CheckpointError, naming the field, for useless or slow values, and if tokenizer_config.json is missing."""
    config = folder / "tokenizer_config.json"
    read_object(config)
    for token_id in read_as(config, _Config, MAX_BYTES).added_tokens_decoder or ():
        if not token_id.isascii() or not token_id.isdigit() or len(token_id) > 8 or int(token_id) >= MAX_ID:
            problem = f"{quoted(token_id)} is not an id from 0 to {MAX_ID - 1:,}"
            raise CheckpointError(f"{config.name}: added_tokens_decoder", problem, "download the file again")
    whole = folder / "tokenizer.json"
    if is_file(whole):
        read_as(whole, _Tokenizer, MAX_TABLE_BYTES)
    for name in ("vocab.json", "added_tokens.json"):
        if is_file(folder / name):
            ids: Any = read_as(folder / name, dict[str, _Id], MAX_TABLE_BYTES)
            if len(ids) > MAX_ID:
                raise CheckpointError(name, f"names {len(ids):,} tokens, above {MAX_ID:,}", "download the file again")


class _Pictures(msgspec.Struct):
    """Pixels of a picture, in `size` and as `min_pixels` and `max_pixels`."""

    shortest_edge: _Count | None = None
    longest_edge: _Count | None = None


class _Preprocessor(msgspec.Struct):
    """Fields that transformers takes unchecked, and that would fail every request: of pictures, then of sound. Missing fields have
    transformers' defaults; so has null where None is allowed."""

    patch_size: _Side | msgspec.UnsetType = msgspec.UNSET
    merge_size: _Side | msgspec.UnsetType = msgspec.UNSET
    temporal_patch_size: _Side | msgspec.UnsetType = msgspec.UNSET
    image_mean: Annotated[list[_Real], Meta(min_length=3, max_length=3)] | msgspec.UnsetType = msgspec.UNSET
    image_std: Annotated[list[_Positive], Meta(min_length=3, max_length=3)] | msgspec.UnsetType = msgspec.UNSET
    rescale_factor: _Positive | msgspec.UnsetType = msgspec.UNSET
    resample: Annotated[int, Meta(ge=0, le=5)] | msgspec.UnsetType = msgspec.UNSET
    do_rescale: bool | None = None
    do_normalize: bool | None = None
    do_convert_rgb: bool | None = None
    size: _Pictures | None = None
    min_pixels: _Count | None = None
    max_pixels: _Count | None = None
    feature_size: _Size | msgspec.UnsetType = msgspec.UNSET
    sampling_rate: _Count | msgspec.UnsetType = msgspec.UNSET
    hop_length: _Size | msgspec.UnsetType = msgspec.UNSET
    n_fft: _Size | msgspec.UnsetType = msgspec.UNSET
    chunk_length: _Count | msgspec.UnsetType = msgspec.UNSET
    dither: Annotated[float, Meta(ge=0, le=1e3)] | msgspec.UnsetType = msgspec.UNSET
    padding_value: _Real | msgspec.UnsetType = msgspec.UNSET


def check_preprocessor(folder: Path) -> None:
    """Raises CheckpointError, naming the field, if the file is missing or has values that no processor can use."""
    path = folder / "preprocessor_config.json"
    resized = read_object(path).get("do_resize", True)
    if resized is not True:
        # Pictures must be divisible into patches: those of most sizes would fail.
        problem = f"is {quoted(resized)}, not True, which alone is supported"
        raise CheckpointError(f"{path.name}: do_resize", problem, OTHER_MODEL)
    read_as(path, _Preprocessor, MAX_BYTES)


_JINJA, _JSON, _CONFIG = "chat_template.jinja", "chat_template.json", "tokenizer_config.json: chat_template"


def load_tokenizer(folder: Path, kind: Any, *, chat: bool = True) -> Any:
    """A tokenizer of the class `kind`, byte-level BPE, with its chat template. chat: whether a template is required; it comes from
    the first of chat_template.jinja, chat_template.json and tokenizer_config.json. Raises CheckpointError if a file is missing or
    wrong."""
    # Read here first, for errors that name the file and the field.
    check_tokenizer_files(folder)
    jinja = folder / _JINJA
    template = _check_template(read_text(jinja, 4 * MAX_SOURCE), _JINJA) if is_file(jinja) else None
    whole, *halves = (is_file(folder / name) for name in ("tokenizer.json", "vocab.json", "merges.txt"))
    # Without any of them transformers would go on with an empty vocabulary.
    if not whole and not all(halves):
        problem = f"there is none in {folder}, neither tokenizer.json nor vocab.json and merges.txt"
        raise CheckpointError("tokenizer", problem, "download the tokenizer files")
    try:
        # The stage refuses prompts that are too long; transformers would only warn, with a limit of its own.
        tokenizer = kind.from_pretrained(folder, local_files_only=True, model_max_length=sys.maxsize)
    # Errors of the tokenizers library have no class of their own.
    except Exception as error:
        problem = f"the files in {folder} cannot be read ({shortened(str(error))})"
        raise CheckpointError("tokenizer", problem, "download the tokenizer files again") from error
    if template is None and chat:
        # Processors keep it in a file that tokenizers do not read.
        found = read_optional_object(folder / _JSON).get("chat_template")
        template = _check_template(found, _JSON) if found else None
    if template is not None:
        tokenizer.chat_template = template
    elif tokenizer.chat_template:
        _check_template(tokenizer.get_chat_template(), _CONFIG)
    elif chat:
        problem = f"there is none in {folder}"
        raise CheckpointError("chat_template", problem, "download chat_template.json or chat_template.jinja")
    return tokenizer


def load_preprocessor(folder: Path, kind: Any) -> Any:
    """A processor of the class `kind`, for pictures or sound, from preprocessor_config.json. Raises CheckpointError."""
    check_preprocessor(folder)
    try:
        return kind.from_pretrained(folder, local_files_only=True)
    # The class of transformers' errors depends on the fault of the file.
    except Exception as error:
        problem = f"the one in {folder} cannot be read ({shortened(str(error))})"
        raise CheckpointError("preprocessor_config.json", problem, "download the file") from error


def chat_template(tokenizer: Any) -> ChatTemplate | None:
    """The template of a tokenizer from `load_tokenizer`, which renders as `apply_chat_template` does; None if it has none."""
    if not tokenizer.chat_template:
        return None
    folder = Path(tokenizer.name_or_path)
    field = next((name for name in (_JINJA, _JSON) if is_file(folder / name)), _CONFIG)
    return ChatTemplate(tokenizer.get_chat_template(), tokenizer.special_tokens_map, field)


def _check_template(template: object, file: str) -> str:
    """Compiles the template: a wrong one would fail every request. Raises CheckpointError."""
    ChatTemplate(template, {}, file)
    assert isinstance(template, str)
    return template
