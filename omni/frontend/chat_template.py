"""The chat template of a checkpoint folder: checked when it is read, or it would fail every request."""

from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

from omni.checkpoint.json_file import read_optional_object
from omni.errors import CheckpointError

_JINJA, _JSON, _CONFIG = "chat_template.jinja", "chat_template.json", "tokenizer_config.json: chat_template"


def read_jinja(folder: Path) -> str | None:
    """What chat_template.jinja holds, None without one. Raises CheckpointError if the file is cut off or wrong."""
    file = folder / _JINJA
    if not file.is_file():
        return None
    try:
        template = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _wrong(_JINJA, f"is no UTF-8 text ({error})") from error
    return _checked(template, _JINJA)


def read_json(folder: Path) -> str | None:
    """The same of chat_template.json, in which processors of transformers keep it."""
    template = read_optional_object(folder / _JSON).get("chat_template")
    return _checked(template, _JSON) if template else None


def check_configured(template: object) -> None:
    """One that tokenizer_config.json has. Raises CheckpointError if it is cut off or wrong."""
    _checked(template, _CONFIG)


def _checked(template: object, file: str) -> str:
    if not isinstance(template, str):
        raise _wrong(file, f"holds a {type(template).__name__}, not a template")
    try:
        # Of no conversation, transformers parses the template and renders nothing.
        render_jinja_template([], chat_template=template)
    # jinja2 is a dependency of transformers alone.
    except Exception as error:
        raise _wrong(file, f"is cut off or no Jinja template ({error})") from error
    if "messages" not in template:
        raise _wrong(file, "is cut off: it reads no messages")
    return template


def _wrong(file: str, problem: str) -> CheckpointError:
    return CheckpointError(file, problem, "download the file again")
