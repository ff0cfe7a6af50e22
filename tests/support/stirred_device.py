"""A device whose streams run late and mixed, a little at each look at an event, as one seed decides."""

from support.queued_device import QueuedDevice


class StirredDevice(QueuedDevice):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)

    def stir(self) -> None:
        """Time passes."""
        self.host_step()
