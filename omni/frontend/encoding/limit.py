"""How long a prompt may be."""

from dataclasses import dataclass

from omni.errors import InputError


@dataclass(frozen=True, slots=True)
class PromptLimit:
    """stage: reads the prompt. tokens: that it may have there."""

    stage: str
    tokens: int

    def check_bytes(self, count: int, longest: int) -> None:
        """Raises InputError for texts of `count` bytes that cannot fit, where an id stands for `longest` bytes at most."""
        if count > self.tokens * longest:
            problem = (
                f"hold {count:,} bytes of text, and {self.stage} takes {self._most} of at most {longest} bytes each"
            )
            raise InputError("messages", problem, self._remedy("them"))

    def check_tokens(self, count: int) -> None:
        """Raises InputError for a text that has `count` tokens before it was read to its end."""
        if count > self.tokens:
            raise InputError(
                "prompt", f"has at least {count:,} tokens, and {self.stage} takes {self._most}", self._remedy("it")
            )

    @property
    def _most(self) -> str:
        return f"{self.tokens + 1} tokens, at least one of them generated,"

    def _remedy(self, what: str) -> str:
        return f"shorten {what} or raise {self.stage}.max_model_len"
