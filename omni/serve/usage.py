"""Token counts of an answer, as OpenAI has them."""

from collections.abc import Iterable, Mapping

import msgspec

from omni.api import Usage


class CompletionTokens(msgspec.Struct, frozen=True, kw_only=True):
    """audio_tokens, text_tokens: of the stages that speak, and of the one that writes."""

    audio_tokens: int
    text_tokens: int
    reasoning_tokens: int = 0


class TokenUsage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionTokens


def token_usage(answers: Iterable[Usage], text_stage: str | None, *, prompts: int | None = None) -> TokenUsage:
    """Of all answers to a request: its prompt counts once. prompts: their tokens, if the answers are to several."""
    given = list(answers)
    text = sum(usage.tokens.get(text_stage, 0) for usage in given if text_stage is not None)
    audio = sum(count for usage in given for stage, count in usage.tokens.items() if stage != text_stage)
    prompt = prompts if prompts is not None else max((usage.prompt_tokens for usage in given), default=0)
    return TokenUsage(
        prompt_tokens=prompt,
        completion_tokens=text + audio,
        total_tokens=prompt + text + audio,
        completion_tokens_details=CompletionTokens(audio_tokens=audio, text_tokens=text),
    )


def finish_reason(reasons: Mapping[str, str], stage: str | None) -> str:
    """`"length"` or `"stop"`. stage: the one that ends the answer."""
    return "length" if stage is not None and reasons.get(stage) == "length" else "stop"
