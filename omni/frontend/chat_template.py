"""Where a checkpoint folder keeps its chat template. It is compiled when it is read, or it would fail every request."""

from pathlib import Path
from typing import Any

from omni.checkpoint.json_file import read_optional_object
from omni.checkpoint.regular_file import is_file, read_text
from omni.frontend.template import MAX_SOURCE, ChatTemplate

_JINJA, _JSON, _CONFIG = "chat_template.jinja", "chat_template.json", "tokenizer_config.json: chat_template"


def read_jinja(folder: Path) -> str | None:
    """What chat_template.jinja holds, None without one. Raises CheckpointError if the file is cut off or wrong."""
    file = folder / _JINJA
    return _checked(read_text(file, 4 * MAX_SOURCE), _JINJA) if is_file(file) else None


def read_json(folder: Path) -> str | None:
    """The same of chat_template.json, in which processors of transformers keep it."""
    template = read_optional_object(folder / _JSON).get("chat_template")
    return _checked(template, _JSON) if template else None


def check_configured(template: object) -> None:
    """One that tokenizer_config.json has. Raises CheckpointError if it is cut off or wrong."""
    _checked(template, _CONFIG)


def chat_template(tokenizer: Any) -> ChatTemplate | None:
    """That of a tokenizer from `load_tokenizer`; None if it has none. It gives what the tokenizer's `apply_chat_template` gives."""
    if not tokenizer.chat_template:
        return None
    return ChatTemplate(
        tokenizer.get_chat_template(), tokenizer.special_tokens_map, _field(Path(tokenizer.name_or_path))
    )


def _field(folder: Path) -> str:
    if is_file(folder / _JINJA):
        return _JINJA
    return _JSON if is_file(folder / _JSON) else _CONFIG


def _checked(template: object, file: str) -> str:
    ChatTemplate(template, {}, file)
    assert isinstance(template, str)
    return template
