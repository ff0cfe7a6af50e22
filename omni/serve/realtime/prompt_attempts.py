"""The prompt of a response, and shorter ones where it is too long."""

from collections.abc import Sequence
from typing import Any

from omni.frontend.limit import LongPromptError
from omni.serve.realtime.conversation import prompt
from omni.serve.realtime.items import Item
from omni.serve.realtime.truncation import PromptBound, without_oldest


class PromptAttempts:
    """messages: of the attempt under way. most: tokens that it may have; None for the model's limit. left_out: items that were
    left out so far."""

    def __init__(self, instructions: str, items: Sequence[Item], bound: PromptBound | None) -> None:
        """bound: None to leave out no item."""
        self._instructions = instructions
        self._all = tuple(items)
        self._items: Sequence[Item] = self._all
        self._bound = bound
        self.most = None if bound is None else bound.most
        self.messages: list[dict[str, Any]]
        self._use(self._items)

    @property
    def left_out(self) -> Sequence[Item]:
        return self._all[: len(self._all) - len(self._items)]

    def rename(self, field: str) -> str:
        """The item that an error is about, by the error's field."""
        return self._rename(field)

    def shorter(self, error: LongPromptError) -> tuple[list[dict[str, Any]], int | None] | None:
        """The next attempt, and its most tokens; None if there is none."""
        if self._bound is None or self.most is None:
            return None
        if len(self._items) > 1:
            self.most = self._bound.target
            self._use(without_oldest(self._items, error.tokens, self.most))
        else:
            # The turn itself is never left out: it is answered if the model accepts it.
            self.most = None
        return self.messages, self.most

    def _use(self, items: Sequence[Item]) -> None:
        self._items = items
        self.messages, self._rename = prompt(self._instructions, items)
