"""Token counts of an answer, as OpenAI has them."""

from collections.abc import Iterable, Mapping

import msgspec

from omni.api import Output
from omni.pipeline import Pipeline


class CompletionTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Generated tokens. audio_tokens: those of the stages that speak. text_tokens: those of the stage that writes."""

    audio_tokens: int
    text_tokens: int
    reasoning_tokens: int = 0


class PromptUsage(msgspec.Struct, frozen=True, kw_only=True):
    """cached_tokens: of the prompt, found in the prefix cache."""

    cached_tokens: int


class TokenUsage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionTokens
    prompt_tokens_details: PromptUsage


def token_usage(finished: Iterable[Output], pipeline: Pipeline) -> TokenUsage:
    """finished: the last output of each answer to a request, which has the usage. A prompt with several answers counts once; the
    part of it that all of them found in the prefix cache is cached."""
    text = audio = 0
    prompts: dict[int, int] = {}
    cached: dict[int, int] = {}
    for output in finished:
        assert output.usage is not None
        for stage, count in output.usage.tokens.items():
            if stage == pipeline.text_stage:
                text += count
            else:
                audio += count
        found = _cached_tokens(output, pipeline.main_stage)
        prompts[output.index] = output.usage.prompt_tokens
        cached[output.index] = min(found, cached.get(output.index, found))
    prompt = sum(prompts.values())
    return TokenUsage(
        prompt_tokens=prompt,
        completion_tokens=text + audio,
        total_tokens=prompt + text + audio,
        completion_tokens_details=CompletionTokens(audio_tokens=audio, text_tokens=text),
        prompt_tokens_details=PromptUsage(cached_tokens=sum(cached.values())),
    )


def _cached_tokens(output: Output, stage: str | None) -> int:
    """0 for stages without a prefix cache."""
    metrics = output.metrics.stages.get(stage) if output.metrics is not None and stage is not None else None
    return metrics.counts.get("cached_tokens", 0) if metrics is not None else 0


def finish_reason(reasons: Mapping[str, str], stage: str | None) -> str:
    """Returns `"length"` or `"stop"`. stage: the one that ends the answer."""
    return "length" if stage is not None and reasons.get(stage) == "length" else "stop"
