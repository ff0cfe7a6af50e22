"""Attention of blocks to themselves, and in few layers to one neighbour.

Attention is within blocks of F latent frames, but for some layers that see one whole block further. Each carries what it sees a
block on, in each of a solver's evaluations. Hence, of making a stream in windows of whole blocks:

- What lies before a window can be exact, at the cost of memory alone: layers that look back need the keys and values that the block
  before had at the same evaluation, which `History` keeps. Nothing before a window is run again.
- What lies ahead cannot, but with as many blocks as all evaluations together carry. With A blocks ahead, which are denoised along
  and thrown away, a window of n blocks costs (n + A) / n. The error is largest in its last block, and goes on into later windows by
  their history. Each block ahead makes it smaller by an order of magnitude or more.
- A stream's end is exact: nothing lies ahead of it.

Rotary angles are relative, so a window may begin anywhere.

Shape legend: U branches (guided, unguided), B rows of a batch, R rows of state, K blocks of a row, F frames of a block, T frames of
all blocks, one after another, D width, E evaluations, L layers that look back, J frames that are attended to, H heads, W head width
(of angles: pairs of it), X all dimensions that follow.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention


@dataclass(frozen=True, slots=True)
class History:
    """What windows keep for those that follow.

    kept_RELX: `[R, E, L, U, F, 2, H, W]`, keys and values of one block of a row, as it was at each evaluation. rows_B: int64.
    read_B: bool, whether it is the block before a row's first one. last_B: int64, the block of a row that is kept now.
    """

    kept_RELX: Tensor
    rows_B: Tensor
    read_B: Tensor
    last_B: Tensor


@dataclass(frozen=True, slots=True)
class BlockWindow:
    """Blocks that are denoised together, of each row. first_B: int64, a row's first block's number in its stream.

    frames_BK: int64, how many frames of a block there are: F, or fewer in a stream's last, or none: then it pads the row.
    """

    first_B: Tensor
    frames_BK: Tensor
    condition_UBKFD: Tensor
    history: History | None


class Surroundings:
    """What the layers of a step share: rotary turns, and which keys exist, as a bias of scores."""

    def __init__(self, window: BlockWindow, frequencies_W: Tensor) -> None:
        branches, _, _, frames, _ = window.condition_UBKFD.shape
        frames_BK, self._history, dtype = window.frames_BK, window.history, window.condition_UBKFD.dtype
        device = frames_BK.device
        frame_F, block_K = torch.arange(frames, device=device), torch.arange(frames_BK.shape[1], device=device)
        angles_BKFW = ((window.first_B[:, None] + block_K) * frames)[:, :, None, None] + frame_F[:, None]
        angles_BKFW = angles_BKFW * frequencies_W
        self._turns = torch.polar(torch.ones_like(angles_BKFW), angles_BKFW)[:, :, :, None, None]
        # A block of nothing attends to itself: there is always a key.
        own_BKF = (frame_F < frames_BK[:, :, None]) | (frames_BK == 0)[:, :, None]
        back_BK = (block_K > 0).expand_as(frames_BK)
        if window.history is not None:
            back_BK = back_BK | window.history.read_B[:, None]
        back_BKF = back_BK[:, :, None].expand_as(own_BKF)
        ahead_BKF = frame_F < pad(frames_BK[:, 1:], (0, 1))[:, :, None]
        # Rows of their own for all queries: kernels want them a multiple of eight values apart.
        bias = torch.zeros((branches, *own_BKF.shape[:2], 1, frames, 3 * frames), dtype=dtype, device=device)
        seen_BKJ = torch.cat((back_BKF, own_BKF, ahead_BKF), 2)
        self._bias = bias.masked_fill_(~seen_BKJ[:, :, None, None], float("-inf")).flatten(0, 2)

    def rotate(self, heads: Tensor) -> None:
        """Turns neighbouring pairs of queries and keys `[U, B, K, F, 2, heads, width]`, in place."""
        pairs = heads.float().unflatten(-1, (-1, 2))
        torch.view_as_complex(pairs).mul_(self._turns)
        if heads.dtype != torch.float32:
            heads.copy_(pairs.flatten(-2))

    def gather(self, kv: Tensor, evaluation_B: Tensor, ahead: bool, past: int | None) -> tuple[Tensor, Tensor]:
        """Keys and values of the block before (if `past` names the layer's history), its own, and the block after (if `ahead`).

        Of `[U, B, K, F, 2, H, W]`, `[U, B, K, J, 2, H, W]`; and the bias of scores, `[U * B * K, 1, F, J]`.
        """
        frames, parts = kv.shape[3], [kv]
        if past is not None:
            parts.insert(0, torch.cat((self._remember(kv, evaluation_B, past), kv[:, :, :-1]), 2))
        if ahead:
            parts.append(torch.cat((kv[:, :, 1:], kv[:, :, :1]), 2))
        places = slice(0 if past is not None else frames, (3 if ahead else 2) * frames)
        return torch.cat(parts, 3) if len(parts) > 1 else kv, self._bias[..., places]

    def _remember(self, kv: Tensor, evaluation_B: Tensor, past: int) -> Tensor:
        """The block before the first, or anything finite; keeps another one in its place."""
        history = self._history
        if history is None:
            return kv[:, :, :1]
        before = history.kept_RELX[history.rows_B, evaluation_B, past].transpose(0, 1)[:, :, None]
        row_B = torch.arange(kv.shape[1], device=kv.device)
        history.kept_RELX[history.rows_B, evaluation_B, past] = kv[:, row_B, history.last_B].transpose(0, 1)
        return torch.where(history.read_B[:, None, None, None, None, None], before, kv[:, :, :1])


class BlockAttention(nn.Module):
    """Parameters are those of `qkv` and of `to_out`, a list of one.

    qkv: `[T, D]` to queries, keys and values, one after another, `[T, 3 * inner]`. out: `[T, inner]` to `[T, D]`.
    rotary_heads: how many heads know of positions, from the first. ahead: whether a block sees the one after.
    past: the layer's number among those that look back; None for one that does not.
    """

    def __init__(
        self, qkv: nn.Module, out: nn.Module, *, heads: int, rotary_heads: int, ahead: bool, past: int | None
    ) -> None:
        super().__init__()
        self._heads, self._rotary_heads, self._ahead = heads, rotary_heads, ahead
        self.past = past
        self.qkv = qkv
        self.to_out = nn.ModuleList([out])

    def forward(self, x_UBKFD: Tensor, evaluation_B: Tensor, around: Surroundings) -> Tensor:
        """`[U, B, K, F, D]` to the same shape. evaluation_B: int64, which one each row is at."""
        projected = self.qkv(x_UBKFD.flatten(0, 3)).view(*x_UBKFD.shape[:4], 3, self._heads, -1)
        around.rotate(projected[..., :2, : self._rotary_heads, :])
        q = projected[..., 0, :, :].flatten(0, 2).transpose(1, 2)
        kv, bias = around.gather(projected[..., 1:, :, :], evaluation_B, self._ahead, self.past)
        k, v = kv.flatten(0, 2).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(-1, self._heads, -1, -1))
        y_TD: Tensor = self.to_out[0](attended.transpose(1, 2).flatten(2).flatten(0, 1))
        return y_TD.view(x_UBKFD.shape)
