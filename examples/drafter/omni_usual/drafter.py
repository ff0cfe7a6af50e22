"""The drafter. Shape legend: R rows of a step, L tokens of a row, K drafts of a row."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
import torch

from omni_ar.drafters import Drafter, DraftRows, DraftSetup


class UsualArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of a stage: only the newest `newest` tokens of a text are searched."""

    newest: Annotated[int, msgspec.Meta(ge=1)] = 1024


def make_drafter(args: Mapping[str, object], setup: DraftSetup) -> Drafter:
    """Once for each stage. An error of `convert` names the argument."""
    return UsualDrafter(msgspec.convert(args, UsualArgs).newest)


class UsualDrafter(Drafter):
    def __init__(self, newest: int) -> None:
        self._newest = newest

    def draft(self, rows: DraftRows) -> None:
        """For a whole batch, in a device phase: no `.item()`, no `if` on a tensor's values."""
        text_RL, at_R1 = rows.text_NL[rows.rows_R].long(), rows.length_N[rows.rows_R, None]
        index_L = torch.arange(text_RL.shape[1], device=text_RL.device)
        known_RL = (index_L < at_R1) & (index_L > at_R1 - self._newest)
        token_R1, drafts, places = text_RL.gather(1, at_R1), [], []
        for _ in range(rows.drafts_NK.shape[1]):
            is_same_RL = known_RL & (text_RL == token_R1)
            place_R1 = torch.where(is_same_RL, index_L, -1).amax(1, keepdim=True)
            token_R1 = text_RL.gather(1, place_R1 + 1)
            drafts.append(token_R1)
            places.append(place_R1)
        rows.drafts_NK.index_copy_(0, rows.rows_R, torch.cat(drafts, 1))
        # Drafts count up to the first token that the text had not before.
        found_RK = torch.cat(places, 1) >= 0
        rows.proposed_N.index_copy_(0, rows.rows_R, found_RK.long().cumprod(1).sum(1))
