"""The drafter `draft_model`: a smaller Qwen3 text model with the stage's vocabulary."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from omni.checkpoint import Checkpoint, resolve
from omni.errors import ConfigError
from omni_ar.drafters import DraftSetup, ModelDrafter
from omni_ar.drafters.draft_model import model_drafter
from omni_ar.drafters.heads import errors_of
from omni_text.model import build as build_model

_KINDS = ("qwen3", "qwen3_moe")


class DraftModelArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """model: checkpoint folder or hub id of the drafter's model."""

    model: str


def build(args: Mapping[str, object], setup: DraftSetup) -> ModelDrafter:
    """Raises CheckpointError for a checkpoint that cannot be read, and ConfigError for a model that does not fit the stage."""
    path = msgspec.convert(args, DraftModelArgs).model
    field = f"{setup.context.stage.name}.drafter_args.model"
    with errors_of(field):
        checkpoint = Checkpoint(resolve(path, weights=setup.context.load_format != "dummy"))
        kind = checkpoint.config.get("model_type")
        if kind not in _KINDS:
            raise ConfigError(field, f"{path} has model_type {kind!r}", f"use a model of {' or '.join(_KINDS)}")
        if checkpoint.config.get("quantization_config"):
            problem = f"{path} has a quantization_config, and quantized weights are not supported"
            raise ConfigError(field, problem, "use the checkpoint in bfloat16 or float32")
        # A whole model on every rank that drafts: it is small.
        model = build_model(replace(setup.context, checkpoint=checkpoint))
        return model_drafter(model, checkpoint, setup)
