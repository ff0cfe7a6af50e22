"""Log-probabilities as OpenAI has them: of tokens as text."""

from collections.abc import Iterable

import msgspec

from omni.api import AsyncOmni, TokenLogprob

_LEAST = -9999.0
"""OpenAI's value for an impossible token: JSON has no infinity."""


class TopToken(msgspec.Struct, frozen=True, kw_only=True):
    """bytes: the token's own; several tokens may share a character, whose replacement each then shows. None if unknown."""

    token: str
    logprob: float
    bytes: list[int] | None


class ScoredToken(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopToken]


class ChoiceLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    content: list[ScoredToken]
    refusal: None = None


def choice_logprobs(omni: AsyncOmni, tokens: Iterable[TokenLogprob]) -> ChoiceLogprobs:
    content = []
    for each in tokens:
        text, data = token_text(omni, each.id)
        tops = [_top(omni, *one) for one in each.top.items()]
        content.append(ScoredToken(token=text, logprob=finite(each.logprob), bytes=data, top_logprobs=tops))
    return ChoiceLogprobs(content=content)


def _top(omni: AsyncOmni, token: int, logprob: float) -> TopToken:
    text, data = token_text(omni, token)
    return TopToken(token=text, logprob=finite(logprob), bytes=data)


def token_text(omni: AsyncOmni, token: int) -> tuple[str, list[int] | None]:
    """Returns a token's text and its bytes. Without a known vocabulary the text is `token_id:ID`."""
    data = omni.token_text(token)
    return (f"token_id:{token}", None) if data is None else (data.decode("utf-8", "replace"), list(data))


def finite(logprob: float) -> float:
    return max(logprob, _LEAST)
