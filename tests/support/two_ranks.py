"""Two processes and what goes between them: messages from rank 0 to rank 1, and broadcasts of rank 1's."""

import io
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from support.patience import PATIENCE_SECONDS

_PATIENCE = timedelta(seconds=PATIENCE_SECONDS)
"""A rank that waits longer for the other gives up."""

Message = dict[str, object]
Sending = list[tuple[dist.Work, Tensor]]
"""Parts of messages that are under way."""


class Ranks:
    """One rank's ends of both process groups. Broadcasts have a group of their own, so that no message stands before one."""

    def __init__(self, store: Path, rank: int) -> None:
        shared = dist.FileStore(str(store), 2)
        self._messages, self._tokens = (
            dist.ProcessGroupGloo(dist.PrefixStore(name, shared), rank, 2, _PATIENCE) for name in ("messages", "tokens")
        )

    def send(self, message: Message, sending: Sending) -> None:
        """To rank 1, which gets messages in order. Does not wait: `sending` is what to keep, and to wait for."""
        file = io.BytesIO()
        torch.save(message, file)
        body = torch.frombuffer(bytearray(file.getbuffer()), dtype=torch.uint8)
        sending += [(self._messages.send([part], 1, 0), part) for part in (torch.tensor([body.shape[0]]), body)]

    def receive(self) -> Message:
        """Of rank 0; waits for it."""
        size = torch.zeros(1, dtype=torch.int64)
        self._messages.recv([size], 0, 0).wait()
        body = torch.zeros(int(size), dtype=torch.uint8)
        self._messages.recv([body], 0, 0).wait()
        message: Message = torch.load(io.BytesIO(body.numpy().tobytes()), weights_only=True)
        return message

    def broadcast(self, tokens_RW: Tensor) -> dist.Work:
        """Rank 1's contents into rank 0's, in the order of calls. Does not wait."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 1, 0
        return self._tokens.broadcast([tokens_RW], options)


@contextmanager
def second_rank(module: str, folder: Path) -> Iterator[Ranks]:
    """Rank 0's ends, with `module` run as rank 1. It must return when it receives an empty message."""
    store = folder / "ranks"
    paths: Sequence[str] = [path for path in sys.path if path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-m", module, str(store)], env=environment) as process:
        try:
            ranks = Ranks(store, 0)
            yield ranks
            ranks.send({}, sending := [])
            assert process.wait(PATIENCE_SECONDS) == 0
            del sending
        finally:
            process.kill()
