"""The signal that ends endless streams when the server ends."""

import asyncio


class Drain:
    """begun: whether the server has stopped taking requests. For the event loop's thread; waiters may be of several loops."""

    def __init__(self) -> None:
        self.begun = False
        self._waiters: set[asyncio.Event] = set()

    def begin(self) -> None:
        self.begun = True
        for waiter in self._waiters:
            waiter.set()

    async def wait(self) -> None:
        """Returns when it has begun."""
        waiter = asyncio.Event()
        self._waiters.add(waiter)
        try:
            if not self.begun:
                await waiter.wait()
        finally:
            self._waiters.discard(waiter)
