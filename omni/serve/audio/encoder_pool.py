"""Processes that encode beside the server's.

FFmpeg releases the interpreter lock while it encodes, a part of a millisecond at a time: an encoder takes the lock some 250 times
for a second of speech, and many encoders in threads have each other and the event loop wait for it. The server's process sends
samples and takes bytes, once for each chunk.
"""

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection

import msgspec

from omni.errors import StageError
from omni.serve.audio.encode import Samples
from omni.serve.audio.encoder_messages import EncodeWork, ForgetEncoder, Reply, Request
from omni.utils.log import safe_logger
from omni.utils.sockets import limit_wait
from omni.utils.struct_types import STRUCT_TYPES

_log = safe_logger("omni.serve")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""These signals may reach all processes. The server alone handles them, and its processes end with it."""
_BOOT = (
    "import signal\n"
    f"for each in {[int(each) for each in _SIGNALS]}: signal.signal(each, signal.SIG_IGN)\n"
    "signal.pthread_sigmask(signal.SIG_SETMASK, [])\n"
    "import json, sys\n"
    "sys.path[:] = json.loads(sys.argv[3])\n"
    "from omni.utils.parent import exit_with\n"
    "exit_with(int(sys.argv[2]))\n"
    "from omni.serve.audio.encoder_process import main\n"
    "main(int(sys.argv[1]))\n"
)
_HUNG_SECONDS = 60.0
"""A process that takes or answers nothing for this time is ended: it may be stopped, as by SIGSTOP."""
_EXIT_SECONDS = 5.0
_SLICE = 2**16
"""Maximum number of samples encoded at once, which bounds the wait of other files."""


class EncoderProcess:
    """One process, started by the first work, and again if it ends. A thread writes to it and reads from it, one request at a
    time."""

    def __init__(self) -> None:
        self.files: set[int] = set()
        """Files that are being written."""
        self._thread = ThreadPoolExecutor(1, "omni-encoders")
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._encoder = msgspec.msgpack.Encoder()
        with STRUCT_TYPES:
            self._decoder = msgspec.msgpack.Decoder(Reply)
        self._closed = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Starts the processes without waiting for them."""
        self._thread.submit(self._started)

    async def encode(self, work: EncodeWork) -> bytes:
        """Raises StageError if the process fails."""
        reply = await asyncio.get_running_loop().run_in_executor(self._thread, self._ask, work)
        if reply.problem:
            raise StageError("encoder", f"writing {work.codec}", reply.problem)
        return reply.data

    def forget(self, file: int, loop: asyncio.AbstractEventLoop) -> None:
        """Forgets a file; a second call has no effect. Safe in a finalizer. loop: of the thread that calls `encode`."""
        if file in self.files:
            self.files.discard(file)
            # The garbage collector may run this within `submit` of any executor, whose lock all executors share and no thread can
            # take twice. The loop's call takes no lock.
            with suppress(RuntimeError):  # the loop is closed, and the server with it
                loop.call_soon_threadsafe(self._forget_soon, file)

    def close(self) -> None:
        """Waits for the end of the process."""
        self._closed = True
        self._thread.shutdown(cancel_futures=True)
        self._end()

    def _ask(self, work: EncodeWork) -> Reply:
        for last in (not work.first, True):
            try:
                return self._decoder.decode(self._sent(work).recv_bytes())
            except (OSError, EOFError) as error:
                self._end()
                how = f"answered nothing for {_HUNG_SECONDS:g} s" if isinstance(error, BlockingIOError) else "ended"
                _log.error("a process of encoders %s (%r); it is started again", how, error)
                if last:  # the process took the partial file with it
                    break
        return Reply(b"", f"its process {how}")

    def _forget_soon(self, file: int) -> None:
        if not self._closed:
            self._thread.submit(self._forget, file)

    def _forget(self, file: int) -> None:
        if self._connection is not None:
            with suppress(OSError):  # the next work finds that the process ended
                self._sent(ForgetEncoder(file))

    def _sent(self, request: Request) -> Connection:
        connection = self._started()
        connection.send_bytes(self._encoder.encode(request))
        return connection

    def _started(self) -> Connection:
        if self._connection is None:
            own, other = socket.socketpair()
            with other:
                # Until the process ignores them itself: it inherits this thread's mask.
                signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
                paths = [path for path in sys.path if isinstance(path, str)]
                # -P: no folder of the user's comes before `sys.path` is theirs.
                command = [sys.executable, "-P", "-c", _BOOT, str(other.fileno()), str(os.getpid()), json.dumps(paths)]
                self._process = subprocess.Popen(command, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                limit_wait(own, option, _HUNG_SECONDS)
            self._connection = Connection(own.detach())
        return self._connection

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            try:
                self._process.wait(_EXIT_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class EncoderPool:
    """Files, each written by one of several processes. For the event loop's thread."""

    def __init__(self, processes: int) -> None:
        """processes: 0 if all is encoded in the server's own."""
        self.processes: Sequence[EncoderProcess] = [EncoderProcess() for _ in range(processes)]
        self._numbers = itertools.count()

    def start(self) -> None:
        """Has the processes started before they are needed."""
        for process in self.processes:
            process.start()

    def open(self, codec: str, sample_rate: int, *, whole: bool) -> "PooledEncoder":
        """Returns an encoder in the process with the fewest encoders."""
        process = min(self.processes, key=lambda each: len(each.files))
        return PooledEncoder(process, next(self._numbers), codec, sample_rate, whole)

    async def close(self) -> None:
        for process in self.processes:
            await asyncio.to_thread(process.close)


class PooledEncoder:
    """`AvEncoder` in another process. Its memory there is free when this object is."""

    def __init__(self, process: EncoderProcess, number: int, codec: str, sample_rate: int, whole: bool) -> None:
        self._process = process
        self._number = number
        self._codec = codec
        self._sample_rate = sample_rate
        self._whole = whole
        self._begun = False
        process.files.add(number)
        self._left = weakref.finalize(self, process.forget, number, asyncio.get_running_loop())
        self._left.atexit = False

    async def push(self, samples: Samples) -> bytes:
        """The bytes that are ready, perhaps none. Raises StageError if the process fails."""
        slices = range(0, len(samples), _SLICE)
        return b"".join([await self._encode(samples[start : start + _SLICE], last=False) for start in slices])

    async def finish(self) -> bytes:
        """Ends the sound and returns the rest of its bytes. Raises StageError if the process fails."""
        data = await self._encode(None, last=True)
        self._process.files.discard(self._number)
        return data

    async def _encode(self, samples: Samples | None, *, last: bool) -> bytes:
        first, self._begun = not self._begun, True
        data = b"" if samples is None else samples.astype("float32", copy=False).tobytes()
        work = EncodeWork(self._number, self._codec, self._sample_rate, self._whole, first, data, last)
        return await self._process.encode(work)
