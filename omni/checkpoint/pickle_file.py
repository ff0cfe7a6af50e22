"""Tables that `torch.save` wrote into a checkpoint folder."""

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from omni.errors import CheckpointError


def read_table(path: Path, what: str) -> dict[str, Any]:
    """The named entries in `path`, of tensors on the CPU, numbers and texts. what: they are, for errors.

    Raises CheckpointError if the file is missing or damaged, holds anything else (nothing of which is run), or nothing.
    """
    try:
        table = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(
            path.name, f"there is none in {path.parent}", f"download it: it holds the {what}"
        ) from error
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise CheckpointError(path.name, f"cannot be read ({error})", "download it again") from error
    if not isinstance(table, dict) or not table:
        raise CheckpointError(path.name, f"names no {what}", "use the file that belongs to these weights")
    return {str(name): entry for name, entry in table.items()}


def check_shape(field: str, tensor: Tensor, shape: tuple[int | None, ...]) -> None:
    """Raises CheckpointError, naming `field`, for another shape, in which None is any number, and for numbers that are none."""
    if tensor.dim() != len(shape) or any(b not in (None, a) for a, b in zip(tensor.shape, shape, strict=True)):
        expected = ", ".join("any" if size is None else str(size) for size in shape)
        problem = f"is {list(tensor.shape)}, not [{expected}]"
        raise CheckpointError(field, problem, "use the file that belongs to these weights")
    if not tensor.isfinite().all():
        raise CheckpointError(field, "holds numbers that are not finite", "use the file that belongs to these weights")
