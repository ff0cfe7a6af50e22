"""Drafters whose model is nearly that of a small stage, so that its likeliest ids often are those of the stage, and often are
not."""

from collections.abc import Mapping

import torch

from omni.plugin import DrafterEntry
from omni_ar.drafters import DraftSetup, ModelDrafter
from omni_ar.drafters.draft_model import ArDraftModel
from tests.support.deep_models import Deep, filled

DEEP = DrafterEntry(name="deep", drafter="tests.support.draft_models:deep_drafter")


def deep_drafter(args: Mapping[str, float], setup: DraftSetup) -> ModelDrafter:
    """args: `noise`, of its output matrix; 0 for the stage's own model."""
    model, generator = filled(Deep()), torch.Generator().manual_seed(5)
    weight = model.get_parameter("lm_head.weight")
    weight.add_(torch.randn(weight.shape, generator=generator), alpha=args["noise"])
    return ModelDrafter(ArDraftModel(model, setup.vocab_size), setup.drafts)
