"""The adapter from a talker to whoever gathers its frames."""

from collections.abc import Sequence

from omni.payload import Payload
from omni_ar.inputs import TokenCodes


class FramesOnly:
    """Frames go on; the ids of their first codes do not."""

    def __init__(self, args: object = None) -> None:
        pass

    def push(self, payload: Payload) -> Sequence[Payload]:
        return (payload,) if isinstance(payload.meta, TokenCodes) else ()

    def finish(self, reason: str) -> Sequence[Payload]:
        return ()
