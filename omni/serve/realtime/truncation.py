"""Conversations that are longer than the model's context: the oldest items are left out of prompts, as with OpenAI.

The number of a prompt's tokens is known when it is prepared: a prompt beyond the limit is refused then, with that number, and is
tried again without some of its items. A prompt within the limit has no further cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from omni.errors import InputError, quoted
from omni.serve.body import convert
from omni.serve.realtime.items import Item, ItemPart
from omni.serve.server import Server

_ANSWER = 8
"""A context over the tokens that are reserved for the answer; OpenAI's is 32k over 4k."""
_TEXT, _PICTURE, _MESSAGE = 0.25, 300.0, 5.0
"""Tokens of a character, a picture and a message, about. Only their ratios count, between items."""
_SOUND = 12.5
"""Tokens of a second, about."""
_CAREFUL = 0.7
"""The share of the excess that is left out at once, since the sizes of items are estimates: never far more than needed."""


class TokenLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    post_instructions: int | None = None


class RetentionRatio(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A truncation as in OpenAI's API. retention_ratio: the share of the tokens after the instructions that stay where the
    conversation is too long. token_limits: when it is; the model's own without."""

    type: Literal["retention_ratio"] = "retention_ratio"
    retention_ratio: float
    token_limits: TokenLimits | None = None

    @property
    def post_instructions(self) -> int | None:
        return None if self.token_limits is None else self.token_limits.post_instructions


Truncation = Literal["auto", "disabled"] | RetentionRatio


def read_truncation(server: Server, given: Any, at: str) -> Truncation:
    """Raises InputError."""
    if given in ("auto", "disabled"):
        return "auto" if given == "auto" else "disabled"
    if not isinstance(given, dict) or given.get("type") != "retention_ratio":
        remedy = 'use "auto", "disabled", or an object of type "retention_ratio"'
        raise InputError(at, f"{quoted(given)} is unknown", remedy)
    read: RetentionRatio = convert(given, RetentionRatio, at)
    if not 0 <= read.retention_ratio <= 1:
        raise InputError(f"{at}.retention_ratio", f"{read.retention_ratio} is out of range", "use 0 to 1")
    most, longest = read.post_instructions, input_limit(server, None)
    if most is not None and (most < 1 or (longest is not None and most > longest)):
        bound = "at least 1" if longest is None else f"1 to {longest:,}"
        raise InputError(f"{at}.token_limits.post_instructions", f"{most} is out of range", f"use {bound}")
    return read


def input_limit(server: Server, output_tokens: int | None) -> int | None:
    """Maximum tokens of a prompt, beside those reserved for an answer; None without a limit. output_tokens: maximum of the
    answer."""
    longest = server.omni.longest_prompt
    if longest is None:
        return None
    reserved = max(1, (longest + 1) // _ANSWER)
    return max(1, longest + 1 - min(reserved, output_tokens or reserved))


@dataclass(frozen=True, slots=True)
class PromptBound:
    """Tokens of a prompt. most: of one that is taken as it is. target: of a longer one, after truncation."""

    most: int
    target: int


def prompt_bound(truncation: Truncation, limit: int | None, instructions: int) -> PromptBound | None:
    """None to exclude no item. limit: of `input_limit`. instructions: tokens of a prompt with these and hardly more."""
    if isinstance(truncation, str):
        return PromptBound(limit, limit) if truncation == "auto" and limit is not None else None
    limits = [limit - instructions] if limit is not None else []
    limits += [truncation.post_instructions] if truncation.post_instructions is not None else []
    if not limits:
        return None
    most = max(0, min(limits))
    return PromptBound(instructions + most, instructions + int(truncation.retention_ratio * most))


def without_oldest(items: Sequence[Item], tokens: int, target: int) -> Sequence[Item]:
    """Returns at least one item fewer, and at least one item: the caller tries again. items: at least two. tokens: of the prompt
    that they make, more than `target`."""
    weights = [_weight(item) for item in items]
    excess = _CAREFUL * (tokens - target) * sum(weights) / tokens
    left_out, count = 0.0, 0
    while count < len(items) - 1 and (not count or left_out + weights[count] <= excess):
        left_out += weights[count]
        count += 1
    return items[count:]


def _weight(item: Item) -> float:
    return _MESSAGE + sum(_weight_of(part) for part in item.parts)


def _weight_of(part: ItemPart) -> float:
    if part.sound is not None and part.format is not None:
        return _SOUND * len(part.sound) / part.format.rate
    return _PICTURE if part.url else _TEXT * len(part.text)
