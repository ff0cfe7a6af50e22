"""Runs a worker by itself, on requests made up for start-up."""

from collections.abc import Sequence

from omni.device import Device, SyncPoint, may_sync
from omni.errors import StageError
from omni.stage.base import StageWorker
from omni.stage.messages import Done, Failed, Inbound, Open, Produced


def dry_run(name: str, worker: StageWorker, device: Device, messages: Sequence[Inbound]) -> None:
    """Sends `messages` to the worker of stage `name` and drives it until the requests that they open are finished.

    Waits for the device after every tick: only at start-up. Raises a failed request's error, and StageError if a
    request is unfinished and nothing happens any more.
    """
    under_way = {message.request_id for message in messages if isinstance(message, Open)}
    worker.inbox.extend(messages)
    while under_way:
        moved = worker.tick()
        with may_sync(SyncPoint.MEASURE):
            device.synchronize()
        while worker.outbox:
            match worker.outbox.popleft():
                case Produced() as produced:
                    produced.close()
                case Failed(error=error):
                    raise error
                case Done(request_id=request_id):
                    under_way.discard(request_id)
                    moved = True
        if not moved and under_way:
            raise StageError(name, "measuring its memory", "its requests do not come to an end")
