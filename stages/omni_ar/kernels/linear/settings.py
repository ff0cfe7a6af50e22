"""The kernel and settings of a linear map, where measurements show it to be faster than cuBLAS."""

import msgspec
import torch
from torch import Tensor

from omni.device.kernel_choice import kernel_device
from omni_ar.kernels.tuning import cached_lookup, tuned

MOST_ROWS = 64


class StreamedSettings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kernel", tag="streamed"
):
    """Settings of the kernel that keeps weights in registers. block_n: outputs of a program. block_d: inputs of a
    step."""

    block_n: int
    block_d: int
    num_warps: int


class TiledSettings(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="kernel",
    tag="tiled",
):
    """Settings of the kernel on the matrix units. tile_n: outputs of a program. tile_d: inputs of a step, which its
    warps split into `slices`. rows_left: whether the left operand is the rows, instead of the weights.

    splits: programs that share the width, in whole tiles; another kernel adds their parts up. 1 with a norm or an
    activation. fetch, held: while the previous kernel still runs, a program loads its weights into the L2 cache
    (fetch), or all of them into registers (held). early: whether the next kernel may start at once, instead of after the
    product (`kernels.overlap`).
    """

    tile_n: int
    tile_d: int
    slices: int
    rows_left: bool
    num_warps: int
    num_stages: int
    splits: int = 1
    fetch: bool = True
    held: bool = False
    early: bool = True


LinearSettings = StreamedSettings | TiledSettings


def settings(kind: str, x_TD: Tensor, weight_ND: Tensor) -> LinearSettings | None:
    """Returns None where cuBLAS is faster or no measurement exists; for kinds with a norm, also where a separate norm
    is faster.

    kind: `linear`, `gated`, `norm_linear` or `norm_gated`.
    """
    rows = x_TD.shape[0]
    if not 0 < rows <= MOST_ROWS:
        return None
    return _settings(kernel_device(x_TD), key(kind, weight_ND), rows)


def key(kind: str, weight_ND: Tensor) -> str:
    """A shape's key in the table. kind: as for `settings`."""
    outputs, width = weight_ND.shape
    return f"{kind}-N{outputs}-D{width}-{str(weight_ND.dtype).removeprefix('torch.')}"


@cached_lookup
def _settings(device: torch.device, key: str, rows: int) -> LinearSettings | None:
    measured = tuned("linear", device, key, rows, {})
    # Shapes that cuBLAS computes faster have no settings.
    found: LinearSettings | None = msgspec.convert(measured, LinearSettings) if measured else None
    return found
