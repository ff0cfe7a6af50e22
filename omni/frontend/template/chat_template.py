"""A compiled chat template."""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateAssertionError

from omni.errors import CheckpointError, InputError, shortened
from omni.frontend.template.effort import limited
from omni.frontend.template.environment import BoundedEnvironment

MAX_SOURCE = 2**18
"""Characters of a template. Published ones have a few thousand."""
_RESTORE = "download the file again"

Turns = Sequence[Mapping[str, Any]]
"""Messages as templates read them: `role`, and `content`, a text or parts."""


class ChatTemplate:
    """Renders as transformers' `apply_chat_template` does, untokenized, within `SECONDS` of CPU time and `MAX_MADE` characters.
    Threads may render at the same time."""

    def __init__(self, source: object, words: Mapping[str, Any], field: str) -> None:
        """words: special tokens by role, such as `bos_token`. field: the file, and where in it. Raises CheckpointError."""
        if not isinstance(source, str):
            raise CheckpointError(field, f"holds a {type(source).__name__}, not a template", _RESTORE)
        if len(source) > MAX_SOURCE:
            raise CheckpointError(field, f"has {len(source):,} characters, above {MAX_SOURCE:,}", _RESTORE)
        self._words, self._field = dict(words), field
        try:
            with limited():
                self._template = BoundedEnvironment().from_string(source)
        except TemplateAssertionError as error:
            problem = f"uses an unsupported construct ({_reason(error)})"
            raise CheckpointError(field, problem, "use a template that transformers can render") from error
        # Any error of jinja2 or of Python's compiler.
        except Exception as error:
            raise CheckpointError(field, f"is cut off or no Jinja template ({_reason(error)})", _RESTORE) from error
        if "messages" not in source:
            raise CheckpointError(field, "is cut off: it reads no messages", _RESTORE)

    def render(self, turns: Turns, *, answer: bool) -> str:
        """A chat as text. answer: up to where the model's answer begins (`add_generation_prompt`). Raises InputError for a chat
        that the template refuses, or that takes it too long."""
        try:
            return self._render(turns, answer)
        # A template is a foreign program: its errors concern this chat.
        except Exception as error:
            problem = f"cannot be rendered by the checkpoint's chat template ({_reason(error)})"
            raise InputError("messages", problem, "send a chat that the template takes") from error

    def probe(self, turns: Turns, *, answer: bool) -> str:
        """Renders a chat that every template must take. Raises CheckpointError for one that does not."""
        try:
            return self._render(turns, answer)
        except Exception as error:
            raise CheckpointError(self._field, f"cannot render a chat ({_reason(error)})", _RESTORE) from error

    def refuse(self, problem: str) -> CheckpointError:
        return CheckpointError(self._field, problem, _RESTORE)

    def _render(self, turns: Turns, answer: bool) -> str:
        with limited():
            return self._template.render(
                {**self._words, "messages": turns, "tools": None, "documents": None, "add_generation_prompt": answer}
            )


def _reason(error: Exception) -> str:
    return shortened(str(error) or type(error).__name__)
