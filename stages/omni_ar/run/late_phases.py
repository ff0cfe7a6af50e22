"""The phases after the token point: codec frames and log-probabilities. The host launches the next step without waiting for them.

Shape legend: as in `omni_ar.run.phases`.
"""

import torch
from torch import Tensor

from omni.errors import ReturnedError, type_of
from omni.stage import method_name, returned_tensor
from omni_ar.kernels import step
from omni_ar.kernels.sampling.state import SamplingFlags
from omni_ar.kernels.step.state import RowState
from omni_ar.model import ArModel, CodecModel, Codes
from omni_ar.sampling.sampler import draw, top_logprobs


def score_tokens(logits_RV: Tensor, ids_R: Tensor, count: int, scores_RW: Tensor) -> None:
    """Computes log-probabilities of the sampled tokens and of the `count` likeliest ids."""
    _write_scores(logits_RV.float(), ids_R.clamp(min=0), count, scores_RW)


def score_prompt(model: ArModel, hidden_sD: Tensor, ids_s: Tensor, count: int, at_once: int, scores_sW: Tensor) -> None:
    """Scores prompt tokens, each from the hidden state before it. at_once: tokens whose logits are computed together."""
    for start in range(0, hidden_sD.shape[0], at_once):
        part = slice(start, start + at_once)
        _write_scores(model.logits(hidden_sD[part]).float(), ids_s[part], count, scores_sW[part])


def copy_scores(host_TW: Tensor, scores_TW: Tensor) -> None:
    host_TW.copy_(scores_TW, non_blocking=True)


def _write_scores(logits_RV: Tensor, ids_R: Tensor, count: int, scores_RW: Tensor) -> None:
    ids, logprobs, ranks = top_logprobs(logits_RV, ids_R, count)
    width = 1 + count
    scores_RW[:, 0] = ranks
    scores_RW[:, 1 : 1 + width] = ids
    scores_RW[:, 1 + width : 1 + 2 * width] = logprobs.double().view(torch.int64)


def predict_codes(
    model: CodecModel,
    state: RowState,
    hidden_RD: Tensor,
    rows_R: Tensor,
    flags: SamplingFlags,
    block_size: int,
    code_pages: Tensor,
) -> None:
    """Predicts the frame that each sampled token begins, and stores it in the token's page slot, and its part of the next input."""
    # The count includes this step's token, so it is one past the position of the draw.
    last_R, position_R = step.frame_inputs(state, rows_R)

    def draw_code(logits_RV: Tensor, group: int) -> Tensor:
        return draw(logits_RV, state.sampling, rows_R, position_R, group, flags)

    frame = _checked_codes(model, model.predict_codes(hidden_RD, last_R, draw_code), rows_R.shape[0])
    # Also for a row that its token has ended: the host decides whether the frame is emitted.
    step.place_frames(state, rows_R, frame.codes_RG, frame.next_RD, block_size, code_pages)
    end = model.frame_end
    if end is not None:
        step.end_frames(state, rows_R, frame.codes_RG, end.code, end.groups)


def _checked_codes(model: CodecModel, frame: object, rows: int) -> Codes:
    """The result of `predict_codes`. Raises ReturnedError for other shapes: a kernel would read past the end."""
    code = model.predict_codes
    if not isinstance(frame, Codes):
        name = method_name(code, "predict_codes")
        raise ReturnedError(f"{name} gave {type_of(frame)}: return Codes", code)
    groups, width = (rows, model.num_groups), (rows, model.next_width)
    hint = "see CodecModel.num_groups"
    returned_tensor(frame.codes_RG, "predict_codes, codes_RG,", code=code, shape=groups, dtype=torch.int64, hint=hint)
    hint = "see CodecModel.next_width"
    returned_tensor(frame.next_RD, "predict_codes, next_RD,", code=code, shape=width, hint=hint)
    return frame
