"""Attention of blocks to themselves, and in few layers to one neighbour.

Attention is within blocks of F latent frames; some layers also see one neighbouring block. Each of these layers carries information
one block further in each of a solver's evaluations. Consequences for streams denoised in windows of whole blocks:

- The past of a window is exact, at the cost of memory alone: layers that look back need the keys and values of the block before
  at the same evaluation, which `History` keeps. No block before a window runs again.
- The future is exact only with as many blocks as all evaluations together reach. With A look-ahead blocks, which are denoised and
  discarded, a window of n blocks costs (n + A) / n. The error is largest in its last block, and propagates to later windows
  through their history. Each look-ahead block reduces it by an order of magnitude or more.
- A stream's end is exact: it has no future.

Rotary angles are relative, so a window may begin anywhere.

Shape legend: U branches (guided, unguided), B rows of a batch, R rows of state, K blocks of a row, F frames of a block, T frames of
all blocks, D width, E evaluations, L layers that look back, J attended frames, H heads, W head width (of angles: pairs of it), X
all remaining dimensions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from omni_diffusion.kernels.block_attention import attend_blocks


@dataclass(frozen=True, slots=True)
class History:
    """Keys and values kept for later windows: kept_RELX `[R, E, L, U, F, 2, H, W]`, of one block of a row at each evaluation.

    rows_B: int64. read_B: bool, whether the kept block precedes the row's first. last_B: int64, the row's block to be kept.
    """

    kept_RELX: Tensor
    rows_B: Tensor
    read_B: Tensor
    last_B: Tensor


@dataclass(frozen=True, slots=True)
class BlockWindow:
    """The blocks of each row that are denoised together. first_B: int64, number of a row's first block in its stream. frames_BK:
    int64, frames of a block: F, fewer in a stream's last block, 0 in padding."""

    first_B: Tensor
    frames_BK: Tensor
    condition_UBKFD: Tensor
    history: History | None


class AttentionContext:
    """Inputs shared by the layers of a step: rotary angles, and a bias of scores that masks missing keys."""

    def __init__(self, window: BlockWindow, frequencies_W: Tensor) -> None:
        branches, _, _, frames, _ = window.condition_UBKFD.shape
        frames_BK, self._history, dtype = window.frames_BK, window.history, window.condition_UBKFD.dtype
        device = frames_BK.device
        frame_F, block_K = torch.arange(frames, device=device), torch.arange(frames_BK.shape[1], device=device)
        angles_BKFW = ((window.first_B[:, None] + block_K) * frames)[:, :, None, None] + frame_F[:, None]
        angles_BKFW = angles_BKFW * frequencies_W
        self._turns = torch.polar(torch.ones_like(angles_BKFW), angles_BKFW)[:, :, :, None, None]
        # A padding block attends to itself, so that every query has a key.
        own_BKF = (frame_F < frames_BK[:, :, None]) | (frames_BK == 0)[:, :, None]
        back_BK = (block_K > 0).expand_as(frames_BK)
        if window.history is not None:
            back_BK = back_BK | window.history.read_B[:, None]
        back_BKF = back_BK[:, :, None].expand_as(own_BKF)
        ahead_BKF = frame_F < pad(frames_BK[:, 1:], (0, 1))[:, :, None]
        # A separate row for each query: kernels require a row stride that is a multiple of eight values.
        bias = torch.zeros((branches, *own_BKF.shape[:2], 1, frames, 3 * frames), dtype=dtype, device=device)
        seen_BKJ = torch.cat((back_BKF, own_BKF, ahead_BKF), 2)
        self._bias = bias.masked_fill_(~seen_BKJ[:, :, None, None], float("-inf")).flatten(0, 2)

    def rotate(self, heads: Tensor) -> None:
        """Rotates adjacent pairs of queries and keys `[U, B, K, F, 2, heads, width]`, in place."""
        pairs = heads.float().unflatten(-1, (-1, 2))
        torch.view_as_complex(pairs).mul_(self._turns)
        if heads.dtype != torch.float32:
            heads.copy_(pairs.flatten(-2))

    def attend(self, qkv_UBKF3HW: Tensor, evaluation_B: Tensor, ahead: bool, past: int | None) -> Tensor:
        """Attention to the own block, to the one before if `past` names the layer's history, and to the one after if `ahead`.
        Returns `[U * B * K, F, H, W]`."""
        before = None if past is None else self._remember(qkv_UBKF3HW[..., 1:, :, :], evaluation_B, past)
        return attend_blocks(qkv_UBKF3HW, self._bias, before, back=past is not None, ahead=ahead)

    def _remember(self, kv: Tensor, evaluation_B: Tensor, past: int) -> Tensor | None:
        """Returns the block before each row's first, `[U, B, F, 2, H, W]`, and replaces it in the history by the block to keep.
        None without a history. kv: `[U, B, K, F, 2, H, W]`."""
        history = self._history
        if history is None:
            return None
        before = history.kept_RELX[history.rows_B, evaluation_B, past].transpose(0, 1)
        row_B = torch.arange(kv.shape[1], device=kv.device)
        history.kept_RELX[history.rows_B, evaluation_B, past] = kv[:, row_B, history.last_B].transpose(0, 1)
        # A bias hides another stream's values in the history, but they may be NaN: the row's own values replace them.
        return torch.where(history.read_B[:, None, None, None, None], before, kv[:, :, 0])


class BlockAttention(nn.Module):
    """Parameters are those of `qkv` and of `to_out`, a list of one.

    qkv: `[T, D]` to queries, keys and values, one after another, `[T, 3 * inner]`. out: `[T, inner]` to `[T, D]`.
    rotary_heads: number of heads with rotary positions, from the first. ahead: whether a block sees the next one. past:
    the layer's number among layers that look back; None for other layers.
    """

    def __init__(
        self, qkv: nn.Module, out: nn.Module, *, heads: int, rotary_heads: int, ahead: bool, past: int | None
    ) -> None:
        super().__init__()
        self._heads, self._rotary_heads, self._ahead = heads, rotary_heads, ahead
        self.past = past
        self.qkv = qkv
        self.to_out = nn.ModuleList([out])

    def forward(self, x_UBKFD: Tensor, evaluation_B: Tensor, context: AttentionContext) -> Tensor:
        """`[U, B, K, F, D]` to the same shape. evaluation_B: int64, each row's evaluation."""
        projected = self.qkv(x_UBKFD.flatten(0, 3)).view(*x_UBKFD.shape[:4], 3, self._heads, -1)
        context.rotate(projected[..., :2, : self._rotary_heads, :])
        attended_NFHW = context.attend(projected, evaluation_B, self._ahead, self.past)
        y_TD: Tensor = self.to_out[0](attended_NFHW.flatten(0, 1).flatten(1))
        return y_TD.view(x_UBKFD.shape)
