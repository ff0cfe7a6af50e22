"""State of the rows' windows, for models that denoise in blocks. Shapes as in `omni_diffusion.model` and
`block_attention`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from omni_diffusion.layers.block_attention import BlockWindow, History
from omni_diffusion.model import Windows


@dataclass(frozen=True, slots=True)
class BlockState:
    """Each row's window: its condition, and four numbers: its first block, its number of latent frames, whether it
    continues from the history, and its block to be kept there. history_RELX: None if windows are independent.

    block: latent frames of a block. repeats: latent frames of a code frame.
    """

    condition_RUTD: Tensor
    numbers_4R: Tensor
    history_RELX: Tensor | None
    block: int
    repeats: int

    @classmethod
    def allocate(
        cls,
        condition_shape: tuple[int, ...],
        history_shape: tuple[int, ...] | None,
        like: Tensor,
        block: int,
        repeats: int,
    ) -> "BlockState":
        """like: a tensor with the state's device and dtype."""
        return cls(
            like.new_zeros(condition_shape),
            like.new_zeros((4, condition_shape[0]), dtype=torch.int64),
            None if history_shape is None else like.new_zeros(history_shape),
            block,
            repeats,
        )

    def begin(self, condition_BUTD: Tensor, windows: Windows) -> None:
        """Begins windows with these conditions. A window without context continues from the window before."""
        self.condition_RUTD[windows.rows_B, :, : condition_BUTD.shape[2]] = condition_BUTD
        follows_B, block_frames = (windows.first_B > 0) & (windows.context_B == 0), self.block // self.repeats
        # The last emitted block, which the next window follows.
        last_B = (windows.context_B + windows.fresh_B - 1) // block_frames
        first_B, frames_B = windows.first_B // block_frames, windows.frames_B * self.repeats
        self.numbers_4R[:, windows.rows_B] = torch.stack((first_B, frames_B, follows_B.long(), last_B))

    def window(self, rows_B: Tensor, length: int) -> BlockWindow:
        """The windows of some rows, limited to the first `length` latent frames, which are whole blocks."""
        first_B, frames_B, follows_B, last_B = self.numbers_4R.index_select(1, rows_B)
        starts_K = torch.arange(0, length, self.block, device=rows_B.device)
        condition_UBTD = self.condition_RUTD[rows_B, :, :length].transpose(0, 1)
        return BlockWindow(
            first_B,
            (frames_B[:, None] - starts_K).clamp(0, self.block),
            condition_UBTD.unflatten(2, (-1, self.block)),
            None if self.history_RELX is None else History(self.history_RELX, rows_B, follows_B.bool(), last_B),
        )
