"""Connections to hosts with checked addresses."""

import asyncio
import socket
import threading
from collections.abc import Iterable

import httpcore

from omni.errors import InputError, known, shortened
from omni.media.address import is_public

_Option = tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]


class Resolver:
    """Host names to addresses, each in a daemon thread: `getaddrinfo` cannot be cancelled.

    most: such threads at once. Further requests wait for one to end, until their own deadline.
    """

    def __init__(self, most: int) -> None:
        self._turns = asyncio.Semaphore(most)

    async def resolve(self, host: str, port: int) -> list[str]:
        """Addresses in the system's order, without those of a single interface. Raises OSError, and StageError if no thread can be
        started."""
        await self._turns.acquire()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[str]] = loop.create_future()

        def settle(found: list[str] | Exception) -> None:
            # Here and not in the waiting request, which may be cancelled while the thread still runs.
            self._turns.release()
            if done.cancelled():
                return
            if isinstance(found, Exception):
                done.set_exception(found)
            else:
                done.set_result(found)

        def run() -> None:
            found: list[str] | Exception
            try:
                listed = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                found = list(dict.fromkeys(str(each[4][0]) for each in listed if "%" not in str(each[4][0])))
            except (OSError, ValueError) as error:
                found = error
            try:
                loop.call_soon_threadsafe(settle, found)
            except RuntimeError:
                # The loop is closed, so no request waits.
                return

        try:
            threading.Thread(target=run, name="omni-resolve", daemon=True).start()
        except RuntimeError as error:
            # The machine is out of threads, perhaps temporarily.
            self._turns.release()
            raise known("frontend", "resolving a host", error) from error
        return await done


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connects to the addresses that were checked: resolving the name a second time may give others.

    field: of the medium, for errors. private: whether addresses outside of the public internet are allowed.
    """

    def __init__(self, resolver: Resolver, field: str, *, private: bool) -> None:
        self._resolver = resolver
        self._field = field
        self._private = private
        self._network = httpcore.AnyIOBackend()
        self._opened: list[httpcore.AsyncNetworkStream] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[_Option] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises InputError if no address is allowed."""
        found = await self._resolver.resolve(host, port)
        allowed = [address for address in found if self._private or is_public(address)]
        if found and not allowed:
            problem = f"is at {shortened(host)}, which is not on the public internet"
            raise InputError(self._field, problem, "use another host, or set frontend.media.private_addresses")
        failure: Exception = OSError(f"{shortened(host)} has no address")
        # Each address gets a share of the time, so that one without an answer leaves some for the next.
        for tried, address in enumerate(allowed):
            left = len(allowed) - tried
            share = None if left == 1 or timeout is None else timeout / left
            try:
                opened = await self._network.connect_tcp(address, port, share, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
            else:
                self._opened.append(opened)
                return opened
        raise failure

    async def aclose(self) -> None:
        """Closes all connections. A request that is cancelled during TLS leaves its own open."""
        for opened in self._opened:
            await opened.aclose()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
