"""Tokenizers and processors of transformers, from a checkpoint folder."""

import sys
from pathlib import Path
from typing import Any

from omni.checkpoint.regular_file import is_file
from omni.errors import CheckpointError, shortened
from omni.frontend.chat_template import check_configured, read_jinja, read_json
from omni.frontend.preprocessor import check_preprocessor
from omni.frontend.tokenizer_files import check_tokenizer_files


def load_tokenizer(folder: Path, kind: Any, *, chat: bool = True) -> Any:
    """A tokenizer of the class `kind`, byte-level BPE, with its chat template, which it may lack unless the family has chats.

    The template comes from chat_template.jinja, chat_template.json or tokenizer_config.json, whichever is there first. Raises
    CheckpointError if a file is missing or wrong.
    """
    # Read here first, for an error that names the file and the field.
    check_tokenizer_files(folder)
    template = read_jinja(folder)
    whole, *halves = (is_file(folder / name) for name in ("tokenizer.json", "vocab.json", "merges.txt"))
    # Without any of them transformers would go on with an empty vocabulary.
    if not whole and not all(halves):
        problem = f"there is none in {folder}, neither tokenizer.json nor vocab.json and merges.txt"
        raise CheckpointError("tokenizer", problem, "download the tokenizer files")
    try:
        # The stage refuses a prompt that is too long; transformers would only warn, of a limit that is not the stage's.
        tokenizer = kind.from_pretrained(folder, local_files_only=True, model_max_length=sys.maxsize)
    # What the tokenizers library raises has no class of its own.
    except Exception as error:
        problem = f"the files in {folder} cannot be read ({shortened(str(error))})"
        raise CheckpointError("tokenizer", problem, "download the tokenizer files again") from error
    if template is None and chat:
        # Where processors keep it, a tokenizer does not look.
        template = read_json(folder)
    if template is not None:
        tokenizer.chat_template = template
    elif tokenizer.chat_template:
        check_configured(tokenizer.get_chat_template())
    elif chat:
        problem = f"there is none in {folder}"
        raise CheckpointError("chat_template", problem, "download chat_template.json or chat_template.jinja")
    return tokenizer


def load_preprocessor(folder: Path, kind: Any) -> Any:
    """A processor of the class `kind`, of pictures or of sound, from preprocessor_config.json.

    Raises CheckpointError if that is missing or wrong.
    """
    check_preprocessor(folder)
    try:
        return kind.from_pretrained(folder, local_files_only=True)
    # What transformers raises depends on what is wrong with the file.
    except Exception as error:
        problem = f"the one in {folder} cannot be read ({shortened(str(error))})"
        raise CheckpointError("preprocessor_config.json", problem, "download the file") from error
