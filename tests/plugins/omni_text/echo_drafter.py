"""A plugin of somebody else with drafters: of one without weights, and of one that reads hidden states. It uses public names."""

from collections.abc import Mapping, Sequence

import msgspec
import torch
from torch import Tensor

from omni.hookspecs import hookimpl
from omni.plugin import DrafterEntry
from omni_ar.drafters import CacheShape, Drafter, DraftModel, DraftRows, DraftSetup, FeatureShape, ModelDrafter
from omni_ar.model import Batch


class EchoArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """back: places between the newest token and the one that is drafted."""

    back: int = 0


class EchoDrafter(Drafter):
    """An earlier token again, as many as a step can verify."""

    def __init__(self, args: Mapping[str, object], setup: DraftSetup) -> None:
        self._back = msgspec.convert(args, EchoArgs).back
        if self._back == 13:
            raise ValueError("not thirteen")

    def draft(self, rows: DraftRows) -> None:
        at_R = (rows.length_N[rows.rows_R] - self._back).clamp(min=0)
        ids_R = rows.text_NL[rows.rows_R, at_R].long()
        drafts = rows.drafts_NK.shape[1]
        rows.drafts_NK.index_copy_(0, rows.rows_R, ids_R[:, None].expand(-1, drafts))
        rows.proposed_N.index_fill_(0, rows.rows_R, drafts)


class EchoHead(DraftModel):
    """Drafts an entry's token again. Its features are those of the stage's first layer."""

    cache_shape = CacheShape(num_layers=1, num_kv_heads=1, head_dim=8)

    def __init__(self, width: int, vocab_size: int) -> None:
        super().__init__()
        self._shape, self._vocab_size = FeatureShape(layers=(1,), width=width), vocab_size

    @property
    def feature_shape(self) -> FeatureShape:
        return self._shape

    def features(self, states_TX: Tensor) -> Tensor:
        return states_TX

    def forward(self, ids_T: Tensor, features_TH: Tensor | None, batch: Batch) -> Tensor:
        assert features_TH is not None
        return torch.cat((ids_T[:, None].to(features_TH.dtype), features_TH[:, 1:]), 1)

    def propose(self, hidden_RD: Tensor) -> Tensor:
        return hidden_RD[:, 0].round().long().clamp(0, self._vocab_size - 1)


def echo_head(args: Mapping[str, object], setup: DraftSetup) -> ModelDrafter:
    return ModelDrafter(EchoHead(setup.model.shape.hidden_width, setup.vocab_size), setup.drafts)


@hookimpl
def omni_drafters() -> Sequence[DrafterEntry]:
    return [
        DrafterEntry(name="echo", drafter=f"{__name__}:EchoDrafter"),
        DrafterEntry(name="echo-head", drafter=f"{__name__}:echo_head"),
    ]
