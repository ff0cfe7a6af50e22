"""The media of a client's item, checked before it is in the conversation: one that cannot be read would fail every response."""

import re
from typing import Any

from omni.errors import InputError
from omni.serve.errors import renamed
from omni.serve.realtime.items import Item
from omni.serve.server import Server

_MEDIUM = re.compile(r"messages\[0\]\.content\[(\d+)\]\.(image_url|input_audio)")
_NAMES = {"image_url": "image_url", "input_audio": "audio"}
"""Names of fields of items, by those of omni's parts."""


async def check_media(server: Server, item: Item, field: str) -> None:
    """Has the front end read the pictures and sounds, as it does for a response. field: of the item. Raises InputError, about the
    item's field, for a medium that is forbidden or unreadable, and OverloadedError."""
    indices, content = list[int](), list[dict[str, Any]]()
    for index, part in enumerate(item.parts):
        read = part.for_model()
        if read is not None and read["type"] != "text":
            indices.append(index)
            content.append(read)
    if not content:
        return
    try:
        await server.prompt_tokens("realtime", [{"role": item.role, "content": content}])
    except InputError as error:
        found = _MEDIUM.match(error.field)
        # Further needs of the model, such as a text beside the sound, may be in other parts and items.
        if found is not None:
            name = f"{field}.content[{indices[int(found[1])]}].{_NAMES[found[2]]}"
            raise renamed(error, lambda _: name) from error
