"""The longest prompt of a stage."""

from dataclasses import dataclass

from omni.errors import CheckpointError, InputError


@dataclass(frozen=True, slots=True)
class PromptLimit:
    """stage: takes the prompt. tokens: of the longest one."""

    stage: str
    tokens: int

    def check_bytes(self, count: int, longest: int) -> None:
        """Raises InputError for texts of `count` bytes that cannot fit, where an id stands for `longest` bytes at most."""
        if count > self.tokens * longest:
            problem = f"hold {count:,} bytes of text, and {self._most}, of at most {longest} bytes each"
            raise InputError("messages", problem, self._remedy("them"))

    def check_template(self, count: int) -> None:
        """Raises CheckpointError for a chat template whose shortest prompt has `count` tokens."""
        if count > self.tokens:
            problem = f"renders a chat of one word as {count:,} tokens, and {self._most}"
            remedy = f"use the template that belongs to these weights, or raise {self.stage}.max_model_len"
            raise CheckpointError("chat_template", problem, remedy)

    def check_tokens(self, count: int) -> None:
        """Raises InputError for a text whose beginning has `count` tokens."""
        if count > self.tokens:
            raise InputError("prompt", f"has at least {count:,} tokens, and {self._most}", self._remedy("it"))

    @property
    def _most(self) -> str:
        return f"{self.stage} takes {self.tokens + 1} tokens, at least one of them generated"

    def _remedy(self, what: str) -> str:
        return f"shorten {what} or raise {self.stage}.max_model_len"
