"""A client that goes away ends its request at once."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive


class ClientGone(Exception):
    """The client closed its connection."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Runs the work; cancels it if the client goes away, and raises ClientGone. The request's body must have been read."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        watch.cancel()
        task.cancel()  # a no-op once it is done
        # The work has freed its resources before this returns.
        await asyncio.gather(task, watch, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
