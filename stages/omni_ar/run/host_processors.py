"""Asks the host processors of requests what may come next, beside the engine's thread."""

from collections.abc import Sequence
from dataclasses import dataclass

from omni.device import HostTask, HostWorker
from omni.sampling import HostLogitsProcessor, LogitsEdit
from omni_ar.run.request import ArRequest
from omni_ar.sampling import merge_edits


@dataclass(frozen=True, slots=True)
class Answer:
    """edit: for the next token. over: nothing can follow."""

    edit: LogitsEdit
    over: bool


class HostProcessorExecutor:
    """A constrained request waits until its host processors have answered for its newest token; nobody else does."""

    def __init__(self, worker: HostWorker, vocab: int) -> None:
        self._worker = worker
        self._vocab = vocab
        self._asked: dict[ArRequest, HostTask[Answer]] = {}

    @property
    def waiting(self) -> int:
        return len(self._asked)

    def ask(self, request: ArRequest, tokens: Sequence[int] = ()) -> None:
        """Tells the request's host_processors of its newest tokens. One question at a time: it runs no step meanwhile."""
        host_processors, news = request.host_processors, tuple(tokens)
        self._asked[request] = self._worker.submit(lambda: _answer(host_processors, news, self._vocab))

    def forget(self, request: ArRequest) -> None:
        """Its answer is of no use to anybody."""
        task = self._asked.pop(request, None)
        if task is not None:
            task.cancel()

    def poll(self) -> list[tuple[ArRequest, Answer | Exception]]:
        """Answers that have come, and what host processors raised."""
        come = [request for request, task in self._asked.items() if task.done()]
        return [(request, _result(self._asked.pop(request))) for request in come]

    def close(self) -> None:
        self._asked.clear()
        self._worker.close()


def _result(task: HostTask[Answer]) -> Answer | Exception:
    try:
        return task.result()
    except Exception as error:  # a host processor may be anybody's code: its request fails, and no other
        return error
    except BaseException as error:  # a library's panic; it happened in another thread and says nothing about this one
        failure = RuntimeError(f"{type(error).__name__}: {error}")
        failure.__cause__ = error
        return failure


def _answer(host_processors: Sequence[HostLogitsProcessor], tokens: Sequence[int], vocab: int) -> Answer:
    over = False
    for token in tokens:
        for processor in host_processors:
            over |= processor.push(token)  # each hears of every token, whatever the others say
    return Answer(
        LogitsEdit() if over else merge_edits([processor.edit() for processor in host_processors], vocab), over
    )
