"""The items of a session, in order."""

import re
from collections.abc import Iterable
from typing import Any

from omni.errors import InputError, counted, quoted
from omni.serve.errors import Rename
from omni.serve.realtime.ids import new_id
from omni.serve.realtime.items import Item
from omni.serve.realtime.memory import SessionMemory

ROOT = "root"
"""The id that precedes the first item."""


class Conversation:
    """The items of a conversation. most: the maximum number of items. id: its id in responses."""

    def __init__(self, memory: SessionMemory, most: int) -> None:
        self.id = new_id("conv")
        self._memory = memory
        self._most = most
        self._items: list[Item] = []
        self._left_out: set[str] = set()

    @property
    def last_id(self) -> str | None:
        return self._items[-1].id if self._items else None

    def check_full(self) -> None:
        """Raises InputError if it has as many items as it may."""
        if len(self._items) >= self._most:
            raise InputError("conversation", f"has {counted(self._most, 'item')}", "delete some")

    def check(self, item: Item, after: str | None = None) -> int:
        """Returns the index that the item would have. Raises InputError."""
        self.check_full()
        if item.id == ROOT or any(each.id == item.id for each in self._items):
            raise InputError("item.id", f"{quoted(item.id)} is taken", "use another, or leave it out")
        return len(self._items) if after is None else 0 if after == ROOT else self._find(after, "previous_item_id") + 1

    def add(self, item: Item, after: str | None = None, *, held: bool = False) -> str | None:
        """Returns the id of the item before it. after: an item, `ROOT`, or None for the end. held: whether the item's memory is
        counted already. Raises InputError, OverloadedError."""
        index = self.check(item, after)
        if not held:
            self._memory.add(item.bytes, "item")
        self._items.insert(index, item)
        return self._items[index - 1].id if index else None

    def get(self, item_id: str, field: str = "item_id") -> Item:
        """Raises InputError for an unknown id."""
        return self._items[self._find(item_id, field)]

    def has(self, item_id: str | None) -> bool:
        return any(item.id == item_id for item in self._items)

    def before(self, item_id: str) -> str | None:
        """The id of the item before one."""
        index = self._find(item_id, "item_id")
        return self._items[index - 1].id if index else None

    def delete(self, item_id: str) -> None:
        """Raises InputError for an unknown id."""
        item = self._items.pop(self._find(item_id, "item_id"))
        self._left_out.discard(item_id)
        self._memory.change(-item.bytes)

    def leave_out(self, items: Iterable[Item]) -> None:
        """Excludes items from further prompts, which were too long with them. They stay in the conversation."""
        self._left_out.update(item.id for item in items if self.has(item.id))

    def items(self) -> tuple[Item, ...]:
        """The items of a prompt."""
        return tuple(item for item in self._items if item.id not in self._left_out)

    def _find(self, item_id: str, field: str) -> int:
        for index, item in enumerate(self._items):
            if item.id == item_id:
                return index
        raise InputError(field, f"{quoted(item_id)} is not an item of the conversation", "use the id of one")


def prompt(instructions: str, items: Iterable[Item]) -> tuple[list[dict[str, Any]], Rename]:
    """Returns the messages of a chat for the model, and a map from fields of these messages to items, which errors name. Each turn
    repeats the messages of earlier turns and adds its own."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    names = ["instructions"] if instructions else []
    for item in items:
        message = item.for_model()
        if message is not None:
            messages.append(message)
            names.append(f"item {item.id}")

    def rename(field: str) -> str:
        found = re.match(r"messages\[(\d+)\](.*)", field, re.DOTALL)
        return names[int(found[1])] + found[2] if found and int(found[1]) < len(names) else field

    return messages, rename
