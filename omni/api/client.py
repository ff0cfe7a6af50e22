"""The parts of a loaded model that outlive a call: front end, request queue, engine and executor, until they are closed."""

import atexit
import itertools

from omni.api.arguments import CheckedArguments
from omni.api.load import Loaded
from omni.api.owner import FROZEN_OBJECTS, SWITCH_INTERVAL, OwnerProcess
from omni.api.request import Deliver, RequestHandle, RequestPreparer, check_at_stages
from omni.api.request_queue import RequestQueue
from omni.api.serial_executor import SerialExecutor
from omni.errors import InputError, StageError, as_omni_error
from omni.media import MediaDownloader
from omni.utils.log import safe_logger

_log = safe_logger(__name__)


class Client:
    """Front end, queue and engine of a model, and the handles that are not finished. A session's finalizer closes it. Nothing runs
    before `start`. The executor makes every change, so an interrupted call (Ctrl-C) has requested all of its change or none."""

    def __init__(self, loaded: Loaded) -> None:
        self.pipeline = loaded.pipeline
        self.frontend = loaded.frontend
        self.engine = loaded.engine
        self.executor = SerialExecutor()
        self.owner = OwnerProcess()
        self.handles: dict[str, RequestHandle] = {}
        self._compiler = loaded.compiler
        self.media = loaded.options.media
        self.max_unread_bytes = loaded.limits.max_unread_bytes
        self.longest_prompt = None if loaded.limit is None else loaded.limit.tokens
        self._downloads = MediaDownloader(self.media)
        preparer = RequestPreparer(
            pipeline=loaded.pipeline,
            frontend=loaded.frontend,
            compiler=loaded.compiler,
            engine=loaded.engine,
            options=loaded.options,
            limit=loaded.limit,
        )
        self.queue = RequestQueue(preparer, self._downloads, self.executor, loaded.limits)
        self._switch_interval = loaded.options.switch_interval
        self._freezes = loaded.options.gc_freeze
        self._numbers = itertools.count()
        self._frozen = self._closing = False
        self._shut_once = False
        self._failure: Exception | None = None

    def start(self) -> None:
        """Starts every thread. If it is interrupted, `close` ends the started ones."""
        self.executor.start()
        self.executor.call(self._start)

    def _start(self) -> None:
        _OPEN.add(self)
        if self._switch_interval is not None:
            SWITCH_INTERVAL.lower(self._switch_interval)
        self.engine.start()
        self.queue.start()
        if self._freezes:
            FROZEN_OBJECTS.freeze()
            self._frozen = True

    def check(self, arguments: CheckedArguments, *, may_wait: bool) -> None:
        """Raises InputError for sampling that this model does not support, and for a voice where there is no choice. may_wait:
        whether to ask the stages too, which may be in another process, and to compile grammars. The other checks run when the
        request is prepared."""
        sampling, fields = arguments.sampling, arguments.fields
        if arguments.voice is not None and not self.frontend.voices:
            raise InputError("voice", "is given, but this model has no voices to choose from", "leave it out")
        if arguments.raw_prompt and not self.frontend.takes_raw_prompts:
            raise InputError("raw_prompt", "is given, but this model takes chats only", "leave it out")
        self._compiler.check(sampling, fields)
        if may_wait:
            check_at_stages(self.engine, self._compiler, sampling, fields)
            self._compiler.check_grammars(sampling, fields)

    @property
    def closed(self) -> bool:
        return self._closing

    def check_open(self) -> None:
        """Raises ForkError in a forked process, StageError when closed."""
        self.owner.check("taking a request")
        if self._closing:
            raise StageError("engine", "taking a request", "it is closed")

    def handle(self, deliver: Deliver) -> RequestHandle:
        """A handle with an id of its own. It is registered when the call is submitted."""
        return RequestHandle(f"r{next(self._numbers)}", deliver, self._finished)

    def close(self) -> None:
        """Aborts all requests, frees the stages and ends every thread. Idempotent. Raises the first error, once: a timeline that
        cannot be written. Ctrl-C interrupts the waiting, not the closing; another call waits for the rest. No-op if forked."""
        if self.owner.forked:
            return
        self._closing = True
        self.executor.submit(self._shut)
        self.executor.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close_soon(self) -> None:
        """As `close`, without waiting. Safe in a finalizer."""
        if not self.owner.forked:
            self._closing = True
            self.executor.soon(self._shut_unseen)

    def abandon(self) -> None:
        """As `close_soon`, after a `start` that was interrupted, even before the executor's thread began. Not for finalizers."""
        self._closing = True
        self.executor.submit(self._shut_unseen)

    def _shut(self) -> None:
        if self._shut_once:
            return
        self._shut_once = True
        # The queue first: else a cancelled request would let the download of the next one begin.
        steps = (self.queue.close, self._cancel_all, self._downloads.close, self.engine.close, self.queue.join_threads)
        try:
            for step in steps:
                try:
                    step()
                except BaseException as error:  # `close` raises it; the rest is closed anyway
                    if self._failure is None:
                        self._failure = (
                            error if isinstance(error, Exception) else as_omni_error("engine", "closing", error)
                        )
                    else:
                        _log.error("a further part of the model could not be closed", exc_info=error)
        finally:
            if self._switch_interval is not None and self in _OPEN:
                SWITCH_INTERVAL.restore(self._switch_interval)
            if self._frozen:
                FROZEN_OBJECTS.unfreeze()
            self.executor.end()
            _OPEN.discard(self)

    def _cancel_all(self) -> None:
        for handle in list(self.handles.values()):
            handle.cancel(StageError("engine", "closing", "the engine was closed"))

    def _shut_unseen(self) -> None:
        self._shut()
        if self._failure is not None:
            _log.error("the model was not closed as it should be", exc_info=self._failure)

    def _finished(self, handle: RequestHandle) -> None:
        self.handles.pop(handle.id, None)
        self.queue.remove(handle)


_OPEN: set[Client] = set()


@atexit.register
def _close_all() -> None:
    """An engine must not be in the middle of a step while the interpreter goes away."""
    for client in list(_OPEN):
        try:
            client.close()
        except BaseException:  # the other models are closed, also after Ctrl-C
            _log.exception("a model was not closed as it should be")
