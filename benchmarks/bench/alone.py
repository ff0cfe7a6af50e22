"""One stream processed alone, without a stage: the reference for comparisons.

Shape legend: N code frames, G code groups, T latent frames, M values of a latent frame, S samples.
"""

import torch
from torch import Tensor

from omni_diffusion.model import DiffusionModel, StateT, Windows
from omni_diffusion.options import DiffusionOptions
from omni_diffusion.windows import WindowSizes


@torch.no_grad()
def denoise_alone(
    model: DiffusionModel[StateT], codes_NG: Tensor, voice: int, noise_TM: Tensor, sizes: WindowSizes | None = None
) -> Tensor:
    """The latents `[T, M]`, fp32, of a whole stream, denoised in windows of `sizes`, or in one window.

    codes_NG: int64. noise_TM: fp32. Both on the model's device.
    """
    total, block = codes_NG.shape[0], model.block_frames
    sizes = sizes or WindowSizes.of(_whole(-(-total // block)), model)
    device = codes_NG.device
    state = model.new_state(2, sizes.frames)  # a row, and the null row
    row_1 = torch.zeros(1, dtype=torch.int64, device=device)
    parts, done = [], 0
    while (window := sizes.next(done, total, ended=True)) is not None:
        numbers = (window.first, window.context, window.fresh, window.frames, voice)
        first_1, context_1, fresh_1, frames_1, voice_1 = torch.tensor(numbers, device=device)[:, None].unbind()
        codes_1NG = codes_NG.new_zeros((1, sizes.frames, codes_NG.shape[1]))
        codes_1NG[0, : window.frames] = codes_NG[window.first : window.first + window.frames]
        model.begin(state, Windows(row_1, first_1, context_1, fresh_1, frames_1, voice_1, codes_1NG))
        length, start = window.frames * model.repeats, window.first * model.repeats
        latents_1TM = noise_TM.new_zeros((1, sizes.width(window.frames) * model.repeats, model.latent_width))
        latents_1TM[0, :length] = noise_TM[start : start + length]
        for step in range(model.num_steps):
            latents_1TM = model.denoise(state, latents_1TM, row_1, torch.full_like(row_1, step)).float()
        fresh, behind = window.context * model.repeats, (window.context + window.fresh) * model.repeats
        parts.append(latents_1TM[0, fresh:behind])
        done += window.fresh
    return torch.cat(parts)


@torch.no_grad()
def render_alone(model: DiffusionModel[StateT], latents_TM: Tensor) -> Tensor:
    """The samples `[S]`, fp32, of a whole stream's latents, in one piece."""
    return model.render(latents_TM[None])[0].float()


def _whole(blocks: int) -> DiffusionOptions:
    """A single window, for streams of up to `blocks` blocks."""
    return DiffusionOptions(first_chunk_blocks=blocks, chunk_blocks=1, blocks_before=0, blocks_after=0)
