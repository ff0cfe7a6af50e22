"""Stage kinds that break one promise each."""

from collections import deque
from typing import ClassVar

import torch
from torch import Tensor

from omni.device import COMPLETED
from omni.payload import Payload
from omni.stage import Feed, Open, PlainStage, Produced, StageContext, StageUsage
from tests.omni.testing.kit.adder import MOST, WIDTH, AdderKind, AdderRequest, AdderWorker, Numbers


class NoOptions(AdderKind):
    options = dict  # type: ignore[assignment]


class LoadsNothing(AdderKind):
    def load(self, context: StageContext) -> PlainStage:
        return None  # type: ignore[return-value]


class AddsTooMuch(AdderKind):
    class worker(AdderWorker):
        def add(self, request: AdderRequest, message: Feed) -> None:
            request.fresh = request.fresh or message.payload.meta == Numbers(2)
            super().add(request, message)


class SharesARow(AdderKind):
    class worker(AdderWorker):
        def add(self, request: AdderRequest, message: Feed) -> None:
            own, request.row = request.row, 0
            super().add(request, message)
            request.row = own


class WantsAllAtOnce(AdderKind):
    """Inputs after the first tick are lost."""

    class worker(AdderWorker):
        def serve(self, request: AdderRequest) -> bool:
            moved = super().serve(request)
            if request.id in self.requests and request.count and not request.inputs:
                request.sources.clear()
            return moved


class ReadsEarly(AdderKind):
    class worker(AdderWorker):
        def arrived(self, message: Feed) -> bool:
            return True


class WaitsForInputs(AdderKind):
    class worker(AdderWorker):
        def arrived(self, message: Feed) -> bool:
            while not message.arrived:
                pass
            return True


class IgnoresForeignInputs(AdderKind):
    class worker(AdderWorker):
        def feed(self, request: AdderRequest, message: Feed) -> None:
            if isinstance(message.payload.meta, Numbers):
                super().feed(request, message)
            else:
                message.release(COMPLETED)


class NeverEndsEmpty(AdderKind):
    class worker(AdderWorker):
        def serve(self, request: AdderRequest) -> bool:
            return bool(request.inputs or request.count) and super().serve(request)


class NeverReleases(AdderKind):
    class worker(AdderWorker):
        def feed(self, request: AdderRequest, message: Feed) -> None:
            super().feed(request, Feed(message.request_id, message.payload, message.ready))


class ReleasesBeforeItReads(AdderKind):
    class worker(AdderWorker):
        def add(self, request: AdderRequest, message: Feed) -> None:
            message.release(COMPLETED)
            super().add(request, Feed(message.request_id, message.payload, message.ready))


class ReusesItsOutput(AdderKind):
    class worker(AdderWorker):
        out_W: Tensor | None = None

        def new_output(self) -> Tensor:
            if self.out_W is None:
                self.out_W = super().new_output()
            return self.out_W


class KeepsRows(AdderKind):
    class worker(AdderWorker):
        def drop(self, request: AdderRequest) -> None:
            row, request.row = request.row, None
            super().drop(request)
            if not request.sources:
                request.row = row
                self.free += [row] if row is not None else []


class KeepsInputs(AdderKind):
    class worker(AdderWorker):
        def drop(self, request: AdderRequest) -> None:
            request.inputs = deque()
            super().drop(request)


class IgnoresPauses(AdderKind):
    class worker(AdderWorker):
        def pause(self, request: AdderRequest) -> None:
            pass


class ForgetsToResume(AdderKind):
    class worker(AdderWorker):
        def resume(self, request: AdderRequest) -> None:
            pass


class LosesInputsInAPause(AdderKind):
    class worker(AdderWorker):
        def feed(self, request: AdderRequest, message: Feed) -> None:
            super().feed(request, message)
            if request.paused:
                request.inputs.pop().release(COMPLETED)


class GivesAfterAnAbort(AdderKind):
    """It gives an output when it is complete, whoever is still there."""

    class worker(AdderWorker):
        waiting: ClassVar[list[Produced]] = []

        def give(self, request: AdderRequest, produced: Produced) -> None:
            self.waiting.append(produced)

        def serve(self, request: AdderRequest) -> bool:
            return not self.waiting and super().serve(request)

        def advance(self) -> bool:
            if self.waiting and self.waiting[0].ready.done():
                produced = self.waiting.pop()
                self.lent.append(produced)
                self.outbox.append(produced)
                return True
            return super().advance()


class RaisesInATick(AdderKind):
    class worker(AdderWorker):
        def fail(self, request_id: str, doing: str, error: Exception) -> None:
            raise error


class LosesAFailedInput(AdderKind):
    class worker(AdderWorker):
        def fail(self, request_id: str, doing: str, error: Exception) -> None:
            self.requests[request_id].inputs.popleft()
            super().fail(request_id, doing, error)


class ClosesOnce(AdderKind):
    class worker(AdderWorker):
        is_closed = False

        def close(self) -> None:
            super().close()
            if self.is_closed:
                raise RuntimeError("closed")
            self.is_closed = True


class CountsDown(AdderKind):
    class worker(AdderWorker):
        def counters(self) -> dict[str, int]:
            return {"left": -self.added}


class IsAlwaysBusy(AdderKind):
    class worker(AdderWorker):
        def advance(self) -> bool:
            super().advance()
            return True


class SaysNothingMoved(AdderKind):
    class worker(AdderWorker):
        def tick(self) -> bool:
            super().tick()
            return None  # type: ignore[return-value]


class Synchronizes(AdderKind):
    class worker(AdderWorker):
        def add(self, request: AdderRequest, message: Feed) -> None:
            super().add(request, message)
            self.device.synchronize()


class WorksOutsidePhases(AdderKind):
    class worker(AdderWorker):
        def give(self, request: AdderRequest, produced: Produced) -> None:
            meta = produced.payload.meta
            ones_W = torch.ones(WIDTH)
            super().give(request, Produced(request.id, Payload(meta, produced.payload.tensors), produced.ready))
            del ones_W


class CountsNoRows(AdderKind):
    class worker(AdderWorker):
        def usage(self) -> StageUsage:
            return {**super().usage(), "rows": 0}


class KeepsRequests(AdderKind):
    class worker(AdderWorker):
        opened = 0

        def open(self, message: Open) -> AdderRequest:
            self.opened += 1
            return super().open(message)

        def usage(self) -> StageUsage:
            return {**super().usage(), "records": self.opened}


class TakesOneEndForAll(AdderKind):
    class worker(AdderWorker):
        def end(self, request: AdderRequest, source: str) -> None:
            request.sources.clear()


class ServesByArrival(AdderKind):
    class worker(AdderWorker):
        def open(self, message: Open) -> AdderRequest:
            request = super().open(message)
            request.order = (0, len(self.requests))
            return request


class IgnoresPriorities(AdderKind):
    """It reads the arrival number of `Open.order` alone."""

    class worker(AdderWorker):
        def open(self, message: Open) -> AdderRequest:
            request = super().open(message)
            request.order = (0, message.order[1])
            return request


class RefusesAndKeeps(AdderKind):
    """It acquires an input, refuses it, and forgets it."""

    class worker(AdderWorker):
        def feed(self, request: AdderRequest, message: Feed) -> None:
            if message.payload.meta == Numbers(MOST):
                message.acquire()
                raise ValueError("too many")
            super().feed(request, message)


class RefusesNothing(AdderKind):
    class worker(AdderWorker):
        def feed(self, request: AdderRequest, message: Feed) -> None:
            if isinstance(message.payload.meta, Numbers):
                request.inputs.append(message)
            else:
                super().feed(request, message)


class WaitsForTensors(AdderKind):
    """An input without tensors never arrives."""

    class worker(AdderWorker):
        def arrived(self, message: Feed) -> bool:
            return bool(message.payload.tensors) and super().arrived(message)


class ReportsNothing(AdderKind):
    class worker(AdderWorker):
        def usage(self) -> StageUsage:
            return {}


class ReportsRowsOnly(AdderKind):
    """Requests that wait are not counted."""

    class worker(AdderWorker):
        def usage(self) -> StageUsage:
            return {"rows": super().usage()["rows"]}


class CannotReport(AdderKind):
    """With work under way."""

    class worker(AdderWorker):
        def usage(self) -> StageUsage:
            return {**super().usage(), "ready": sum(each.ready.index for each in self.lent)}  # type: ignore[attr-defined]


class ReportsNames(AdderKind):
    class worker(AdderWorker):
        def usage(self) -> StageUsage:
            return {"requests": list(self.requests)}  # type: ignore[dict-item]


class KeepsRowsWhenClosed(AdderKind):
    class worker(AdderWorker):
        def close(self) -> None:
            for request in self.requests.values():
                request.row = None
            super().close()


class KeepsOutputsWhenClosed(AdderKind):
    class worker(AdderWorker):
        def close(self) -> None:
            lent = list(self.lent)
            super().close()
            self.lent += lent
