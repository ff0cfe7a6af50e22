"""All passes of a frame's decoder in one kernel, for a few rows: layers, heads, the draws of codes, and their embeddings.

Few rows are bound by reading the weights, and by what lies between the reads: apart, a pass is some thirty launches. It
is chosen where a table has settings for the shape. Elsewhere a frame is `FrameLayers.run`, which is also the reference:
this folder has none of its own.

Shape legend: R rows, D width of the layers, E width of a code's embedding, G positions of a frame, W head width.
"""

from torch import Tensor

from omni.device.kernel_choice import runs_kernel
from omni_ar.kernels.frame_decoder.settings import FrameSettings, FrameShape, frame_settings, key
from omni_ar.kernels.frame_decoder.weights import AddressTable, FrameWeights, LayerWeights, readable
from omni_ar.kernels.sampling.state import CodeDraws

__all__ = [
    "AddressTable",
    "FrameSettings",
    "FrameShape",
    "FrameWeights",
    "LayerWeights",
    "chosen",
    "decode_frames",
    "key",
    "readable",
]


def chosen(first_TD: Tensor, shape: FrameShape) -> FrameSettings | None:
    """Settings for `decode_frames`; None where the passes run apart. first_TD: as there."""
    return frame_settings(first_TD, shape) if runs_kernel(first_TD) else None


def decode_frames(
    first_TD: Tensor,
    sum_RE: Tensor | None,
    tables_GW: tuple[Tensor, Tensor],
    shape: FrameShape,
    table: AddressTable,
    eps: float,
    draws: CodeDraws,
    settings: FrameSettings,
) -> tuple[Tensor, Tensor | None]:
    """Codes of the groups behind the first, int64 `[R, G - 1]`, drawn as `omni_ar.sampling.draw` does; and `sum_RE` plus
    the embeddings of these codes, added one after another.

    first_TD: `[2 * R, D]`, each row's inputs of positions 0 and 1. sum_RE: None without the sum. tables_GW: from
    `RotaryEmbedding`, for positions 0 to G - 1. eps: of all norms. Rounded where the layers round; the exception of
    `norm_linear` does not apply.
    """
    from omni_ar.kernels.frame_decoder import kernel

    return kernel.decode_frames(first_TD, sum_RE, tables_GW, shape, table, eps, draws, settings)
