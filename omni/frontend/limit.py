"""The longest prompt of a stage."""

from dataclasses import dataclass

from omni.errors import CheckpointError, InputError


class LongPromptError(InputError):
    """A prompt is too long. tokens: of it, at least."""

    def __init__(self, field: str, problem: str, remedy: str, tokens: int, operator_remedy: str = "") -> None:
        super().__init__(field, problem, remedy, operator_remedy)
        self.tokens = tokens


def check_prompt(tokens: int, most: int | None) -> None:
    """Raises LongPromptError for more than the request allows."""
    if most is not None and tokens > most:
        remedy = "shorten it or raise max_prompt_tokens"
        raise LongPromptError("prompt", f"has {tokens:,} tokens, and the request allows {most:,}", remedy, tokens)


@dataclass(frozen=True, slots=True)
class PromptLimit:
    """stage: takes the prompt. tokens: of the longest one."""

    stage: str
    tokens: int

    def check_bytes(self, count: int, longest: int) -> None:
        """Raises LongPromptError for texts of `count` bytes that cannot fit. longest: maximum bytes of one id."""
        if count > self.tokens * longest:
            problem = f"hold {count:,} bytes of text, and {self._most}, of at most {longest} bytes each"
            raise LongPromptError("messages", problem, "shorten them", -(-count // longest), self._operator_remedy)

    def check_template(self, count: int) -> None:
        """Raises CheckpointError for a chat template whose shortest prompt has `count` tokens."""
        if count > self.tokens:
            problem = f"renders a chat of one word as {count:,} tokens, and {self._most}"
            remedy = f"use the template that belongs to these weights, or raise {self.stage}.max_model_len"
            raise CheckpointError("chat_template", problem, remedy)

    def check_tokens(self, count: int) -> None:
        """Raises LongPromptError for a text whose beginning has `count` tokens."""
        if count > self.tokens:
            problem = f"has at least {count:,} tokens, and {self._most}"
            raise LongPromptError("prompt", problem, "shorten it", count, self._operator_remedy)

    @property
    def _most(self) -> str:
        return f"{self.stage} takes {self.tokens + 1} tokens, at least one of them generated"

    @property
    def _operator_remedy(self) -> str:
        return f"raise {self.stage}.max_model_len"
