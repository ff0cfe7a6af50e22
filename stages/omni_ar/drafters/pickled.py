"""Checkpoints of heads, many of which are published as `pytorch_model.bin` alone."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file
from torch import Tensor

from omni.checkpoint import Checkpoint, resolve
from omni.checkpoint.regular_file import is_file, open_file
from omni.errors import CheckpointError
from omni_ar.drafters.vocabulary import TABLE, WHOLE

_PICKLED = "pytorch_model.bin"


@contextmanager
def head_checkpoint(model: str, *, weights: bool = True) -> Iterator[Checkpoint]:
    """The checkpoint of a folder, or of a name on the hub. A checkpoint whose only weights are in `pytorch_model.bin` is, while
    entered, a temporary copy in safetensors. weights: False for random ones. Raises CheckpointError."""
    checkpoint = Checkpoint(resolve(model, weights=weights))
    if not weights or checkpoint.has_weights:
        yield checkpoint
        return
    folder = resolve(model, files=(_PICKLED,))
    if not is_file(folder / _PICKLED):
        yield checkpoint
        return
    with TemporaryDirectory(prefix="omni-head-") as copy:
        for name in ("config.json", WHOLE, TABLE):
            if is_file(folder / name):
                shutil.copyfile(folder / name, Path(copy, name))
        save_file(_unpickled(folder / _PICKLED), Path(copy, "model.safetensors"))
        yield Checkpoint(copy)


def _unpickled(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, each in memory of its own. Nothing in it is executed."""
    with open_file(path) as file:
        try:
            weights = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            # For a damaged file the unpickler raises errors of many types, and torch's message recommends executing it.
            problem = f"is damaged, or holds more than tensors ({type(error).__name__})"
            raise CheckpointError(path.name, problem, "download it again") from error
    if not isinstance(weights, dict) or not all(isinstance(each, Tensor) for each in weights.values()):
        raise CheckpointError(path.name, "holds no table of weights", "use the file of a published head")
    return {str(name): weight.contiguous().clone() for name, weight in weights.items()}
