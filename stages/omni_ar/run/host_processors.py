"""Runs the host processors of requests (grammars, logits processors that need history) beside the engine's thread."""

from collections.abc import Sequence
from dataclasses import dataclass

from omni.device import HostTask, HostWorker
from omni.sampling import HostLogitsProcessor, LogitsEdit
from omni_ar.run.request import ArRequest
from omni_ar.sampling import merge_edits


@dataclass(frozen=True, slots=True)
class HostProcessorResult:
    """edit: to the logits of the next token. ends: the text ends here, no token may follow."""

    edit: LogitsEdit
    ends: bool


class HostProcessorExecutor:
    """A constrained request waits until its host processors have taken its newest token; no other request does."""

    def __init__(self, worker: HostWorker, vocab: int) -> None:
        self._worker = worker
        self._vocab = vocab
        self._tasks: dict[ArRequest, HostTask[HostProcessorResult]] = {}

    @property
    def waiting(self) -> int:
        return len(self._tasks)

    def submit(self, request: ArRequest, tokens: Sequence[int] = ()) -> None:
        """Passes the request's newest tokens to its host processors. One task at a time: the request runs no step meanwhile."""
        host_processors, newest = request.host_processors, tuple(tokens)
        self._tasks[request] = self._worker.submit(lambda: _process(host_processors, newest, self._vocab))

    def cancel(self, request: ArRequest) -> None:
        task = self._tasks.pop(request, None)
        if task is not None:
            task.cancel()

    def poll(self) -> list[tuple[ArRequest, HostProcessorResult | Exception]]:
        """Results that have come, and exceptions of host processors."""
        done = [request for request, task in self._tasks.items() if task.done()]
        return [(request, _result(self._tasks.pop(request))) for request in done]

    def close(self) -> None:
        self._tasks.clear()
        self._worker.close()


def _result(task: HostTask[HostProcessorResult]) -> HostProcessorResult | Exception:
    try:
        return task.result()
    except Exception as error:  # a host processor may be a user's code: its request fails, and no other
        return error
    except BaseException as error:  # a library's panic; it happened in another thread and says nothing about this one
        failure = RuntimeError(f"{type(error).__name__}: {error}")
        failure.__cause__ = error
        return failure


def _process(host_processors: Sequence[HostLogitsProcessor], tokens: Sequence[int], vocab: int) -> HostProcessorResult:
    ends = False
    for token in tokens:
        for processor in host_processors:
            ends |= processor.push(token)  # each takes every token, even if another ends the text
    edit = LogitsEdit() if ends else merge_edits([processor.edit() for processor in host_processors], vocab)
    return HostProcessorResult(edit, ends)
