"""Rejects weights that are not finite in their dtype: a model's outputs would be meaningless."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from omni.device import SyncPoint, may_sync
from omni.errors import CheckpointError

_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def check_finite(weights: Mapping[str, Tensor], held: Iterable[Tensor]) -> None:
    """Raises CheckpointError for a weight with a NaN or an infinity.

    weights: views of the parameters, by published name. held: these parameters, on one device.

    Checks all weights in place once they are loaded: one pass over memory, a few launches on a GPU and about 1% of the
    loading time. The host waits for it once.
    """
    parameters = [tensor for tensor in held if tensor.dtype in _FLOATS and tensor.numel() and not tensor.is_meta]
    if parameters and not _largest(parameters).isfinite().all():
        name = next(name for name, weight in weights.items() if not _largest([weight]).isfinite().all())
        problem = f"holds numbers that are not finite in {str(weights[name].dtype).removeprefix('torch.')}"
        raise CheckpointError(name, problem, "download the shard again, or use a dtype that holds them")


def _largest(tensors: list[Tensor]) -> Tensor:
    """The largest magnitude in each tensor, or its non-finite value, on the host."""
    if tensors[0].device.type == "cuda":
        with may_sync(SyncPoint.LOAD):
            return torch.stack(torch._foreach_norm(tensors, torch.inf, dtype=torch.float32)).cpu()
    # amin and amax: faster than norms on the CPU.
    return torch.stack([torch.stack(torch.aminmax(tensor)).float().abs().amax() for tensor in tensors])
