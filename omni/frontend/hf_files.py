"""Tokenizers, chat templates and processors of transformers, from a checkpoint folder."""

import sys
from pathlib import Path
from typing import Any

from omni.checkpoint.json_file import read_optional_object
from omni.checkpoint.regular_file import is_file, read_text
from omni.errors import CheckpointError, shortened
from omni.frontend.hf_checks import check_preprocessor, check_tokenizer_files
from omni.frontend.template import MAX_SOURCE, ChatTemplate

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
    """A processor of the class `kind`, for pictures or sound, from preprocessor_config.json. Raises CheckpointError if it is
    wrong."""
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
