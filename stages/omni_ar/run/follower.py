"""The worker of a rank other than 0: launches the steps of rank 0, in their order. On the CPU a launch waits for other ranks."""

from collections import deque
from collections.abc import Mapping
from typing import NoReturn

from omni.errors import InputError, LostRankError, StageError
from omni.parallel import Ranks
from omni.parallel.watch import StepWatch
from omni.sampling import SamplingParams
from omni.stage import Inbound, Outbound, StageUsage
from omni.utils.log import safe_logger
from omni_ar.run.launch import ForgetMessage, RankMessage, StepMessage, decode
from omni_ar.run.runner import Runner
from omni_ar.run.step import SampledStep

_log = safe_logger(__name__)


FORGET_SECONDS = 10.0
"""Time for rank 0 to report that a step failed there too, which it does as soon as it fails."""


class FollowerWorker:
    """Has no requests: rank 0 schedules, and reads the results. A step that fails here must have failed at rank 0 too, which
    reports it with its next message; otherwise the ranks differ, and `tick` raises StageError."""

    def __init__(self, name: str, runner: Runner, ranks: Ranks) -> None:
        self.inbox: deque[Inbound] = deque()
        self.outbox: deque[Outbound] = deque()
        self.phase_model = runner.model
        self._name = name
        self._runner = runner
        self._ranks = ranks
        self._in_flight: deque[SampledStep] = deque()
        self._watch = StepWatch(ranks, runner.device.seconds)
        self._newest = -1
        self._failure: BaseException | None = None
        """The error of the newest step, until rank 0 reports that it failed there too."""
        self._failed_at = 0.0

    @property
    def longest_prompt(self) -> int | None:
        return None

    def check(self, sampling: SamplingParams, field: str) -> None:
        raise InputError(field, f"is for {self._name}, whose requests run at rank 0", "send it there")

    def usage(self) -> StageUsage:
        """A step counts until its tokens have arrived. An engine without steps sleeps, and would not detect missing tokens."""
        awaits = not self._in_flight and self._runner.awaited is not None
        return {"steps": len(self._in_flight) + (self._failure is not None) + awaits}

    def counters(self) -> Mapping[str, int]:
        """Empty: the counters of rank 0 include the steps of all ranks."""
        return {}

    def poll(self) -> bool:
        """Raises LostRankError for a step that hangs."""
        return self._release()

    def tick(self) -> bool:
        """Raises StageError if the ranks differ, and LostRankError without rank 0 or for a step that hangs."""
        moved = self._release()
        if self._failure is not None and self._runner.device.seconds() - self._failed_at > FORGET_SECONDS:
            self._differ()
        while self._runner.ready and self._runner.can_score and (body := self._ranks.channel.take()) is not None:
            self._follow(decode(body))
            moved = True
            self._release()
        return moved

    def close(self) -> None:
        self._in_flight.clear()

    def _follow(self, message: RankMessage) -> None:
        if isinstance(message, ForgetMessage):
            self._forget(message)
            return
        if self._failure is not None:
            self._differ()
        self._newest = message.launch.number
        try:
            self._in_flight.append(self._launched(message))
        except LostRankError:
            raise
        except BaseException as error:
            self._failure, self._failed_at = error, self._runner.device.seconds()

    def _differ(self) -> NoReturn:
        problem = f"step {self._newest} failed at rank {self._ranks.rank} only: {self._failure}"
        raise StageError(self._name, "running a step", problem) from self._failure

    def _launched(self, message: StepMessage) -> SampledStep:
        launch = message.launch
        numbers = {"step": launch.number, "decodes": launch.decodes, "prefill": launch.prefill}
        device, stream = self._runner.device, self._runner.stream
        with device.on(stream), device.host_span(stream, "follow", **numbers):
            return self._runner.follow(message)

    def _forget(self, message: ForgetMessage) -> None:
        # A rank without the last layer range is not affected by a failure in the work that follows them.
        failed = self._failure is not None or not self._runner.has_last_layers
        if not failed or message.number != self._newest:
            problem = f"step {message.number} failed at rank 0, and not at rank {self._ranks.rank}"
            raise StageError(self._name, "running a step", problem)
        _log.debug("%s: step %d failed at every rank", self._name, self._newest, exc_info=self._failure)
        self._failure = None
        self._runner.forget_batch(message.number)

    def _release(self) -> bool:
        """Frees the host memory of complete steps, whose results rank 0 reads from its own."""
        moved = False
        while self._in_flight and self._in_flight[0].end.done():
            step = self._in_flight.popleft()
            for handoff in (step.tokens, step.scores):
                if handoff is not None:
                    handoff.host.release()
            moved = True
        # On the CPU a launch waits for its own end, so a hung rank is detected only by the messages that it does not send.
        if not self._in_flight and (awaited := self._runner.awaited) is not None:
            self._watch.look(awaited, awaited.arrived)
        else:
            self._watch.look(self._in_flight[0] if self._in_flight else None)
        return moved
