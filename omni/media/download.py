"""Downloads of media, in one event loop in a daemon thread of its own."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError

from omni.errors import InputError, StageError, as_omni_error, shortened
from omni.media.http import Resolver, download
from omni.media.options import MediaOptions


class MediaDownloader:
    """Fetches any number of URLs at once. The thread starts with the first. Nothing here waits. Each download ends at most
    `MediaOptions.download_seconds` after it began, or when its future is cancelled."""

    def __init__(self, options: MediaOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._waiting: set[Future[bytes]] = set()
        self._closed = False

    def fetch(self, url: str, field: str) -> "Future[bytes]":
        """The bytes of an http(s) URL, as a future. It raises InputError, naming `field`, if the URL is forbidden (`MediaOptions`)
        or cannot be downloaded, and StageError if the downloads are closed meanwhile or no thread can be started."""
        future: Future[bytes] = Future()
        with self._lock:
            if self._closed:
                future.set_exception(_closed())
                return future
            try:
                worker = self._worker = self._worker or _Worker(self._options)
            except (RuntimeError, OSError) as error:
                # The machine is out of threads or files, perhaps temporarily.
                future.set_exception(as_omni_error("frontend", "downloading", error))
                return future
            self._waiting.add(future)
        future.add_done_callback(self._forget)
        worker.start(future, url, field)
        return future

    def close(self) -> None:
        """Ends downloads under way with an error. Idempotent."""
        with self._lock:
            first, self._closed = not self._closed, True
            waiting = list(self._waiting)
        for future in waiting:
            _settle(future, _closed())
        if first and self._worker is not None:
            self._worker.stop()

    def _forget(self, future: "Future[bytes]") -> None:
        with self._lock:
            self._waiting.discard(future)


class _Worker:
    """The loop and its thread."""

    def __init__(self, options: MediaOptions) -> None:
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._slots = asyncio.Semaphore(options.max_downloads)
        self._resolver = Resolver(options.max_downloads)
        self._tasks: set[asyncio.Task[None]] = set()
        # A daemon: at its end, the interpreter waits for all other threads.
        try:
            threading.Thread(target=self._run, name="omni-downloads", daemon=True).start()
        except BaseException:
            self._loop.close()
            raise

    def start(self, future: "Future[bytes]", url: str, field: str) -> None:
        self._soon(lambda: self._begin(future, url, field))

    def stop(self) -> None:
        self._soon(self._loop.stop)

    def _soon(self, call: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            # The loop is closed, and its downloads have ended.
            return

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._end())
        finally:
            self._loop.close()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        # A transport closes its socket in the loop's next round.
        await asyncio.sleep(0)
        await self._loop.shutdown_asyncgens()

    def _begin(self, future: "Future[bytes]", url: str, field: str) -> None:
        if future.done():
            return
        task = self._loop.create_task(self._serve(future, url, field))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Cancelled, or ended by `close`: the connection ends too.
        future.add_done_callback(lambda _: self._soon(task.cancel))

    async def _serve(self, future: "Future[bytes]", url: str, field: str) -> None:
        limit = self._options.download_seconds
        try:
            async with self._slots, asyncio.timeout(limit):
                _settle(future, await download(url, field, self._options, self._resolver))
        except TimeoutError:
            problem = f"could not download {shortened(url)} (no end after {limit:g} s)"
            remedy, setting = "send the file itself as a data URI", "raise frontend.media.download_seconds"
            _settle(future, InputError(field, problem, remedy, setting))
        except Exception as error:  # any error belongs to the waiting request
            _settle(future, error)


def _settle(future: "Future[bytes]", outcome: bytes | Exception) -> None:
    """A no-op if it was cancelled or closed meanwhile."""
    try:
        if isinstance(outcome, bytes):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)
    except InvalidStateError:
        return


def _closed() -> StageError:
    return StageError("frontend", "downloading", "the engine was closed")
