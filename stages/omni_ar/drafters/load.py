"""Finds and checks the drafter of a stage."""

from dataclasses import replace

import msgspec
import torch

from omni.device.meta import MetaDevice
from omni.errors import ConfigError, plugin_error, plugin_setup, type_of
from omni.plugin import locate
from omni.stage import StageContext, returned_tensor
from omni.utils.origin import with_origin
from omni_ar.drafters.base import Drafter, DraftSetup, PagedDrafter
from omni_ar.model import ArModel, CodecModel
from omni_ar.options import ArOptions


def load_drafter(context: StageContext, model: ArModel, max_model_len: int) -> Drafter | None:
    """None for a stage without a drafter. model: the stage's. At a rank without the last layer range, which runs none, the drafter
    is on the meta device.

    Raises ConfigError for an unknown name, for arguments that the drafter refuses, and for a stage that cannot verify drafts;
    PluginError for a drafter that cannot be loaded, or whose hidden states are not those of the stage; and the errors of a drafter
    that reads a checkpoint.
    """
    stage, options, entries = context.stage.name, context.options, context.drafters
    assert isinstance(options, ArOptions)
    name = options.drafter
    if name is None:
        given = {
            "drafter_args": options.drafter_args is not None,
            "draft_tokens": options.draft_tokens is not None,
            "adaptive_drafts": options.adaptive_drafts is not None,
        }
        for field, is_given in given.items():
            if is_given:
                raise ConfigError(f"{stage}.{field}", "is given without a drafter", f"set {stage}.drafter too")
        return None
    if name not in entries:
        known = ", ".join(sorted(entries)) or "none"
        raise ConfigError(f"{stage}.drafter", f"{name!r} is not a drafter", f"known are {known}; see `omni plugins`")
    _check_stage(stage, model)
    entry = entries[name]
    build = locate(entry.drafter, f"drafters.{name}")
    if not callable(build):
        problem = with_origin(f"is {type_of(build)}, which cannot be called", code=build)
        raise plugin_error(entry.drafter, problem, "name a class or a function")
    shape = model.shape
    if context.ranks is not None and context.ranks.pipeline is not None and not context.ranks.pipeline.last:
        context = replace(context, device=MetaDevice(), load_format="dummy")
    setup = DraftSetup(
        drafts=options.drafts,
        vocab_size=shape.vocab_size,
        max_model_len=max_model_len,
        model=model,
        context=context,
    )
    with plugin_setup(entry.drafter, "correct it", build):
        try:
            drafter: object = build({} if options.drafter_args is None else options.drafter_args, setup)
        except msgspec.ValidationError as error:
            problem, remedy = str(error), f"see the arguments of drafter {name!r}"
            raise ConfigError(f"{stage}.drafter_args", problem, remedy) from error
    if not isinstance(drafter, Drafter):
        problem = with_origin(f"gives {type_of(drafter)}, no Drafter", code=build)
        raise plugin_error(entry.drafter, problem, "derive it from omni_ar.drafters.Drafter")
    if isinstance(drafter, PagedDrafter):
        with plugin_setup(entry.drafter, "correct it", build):
            _check_features(entry.drafter, drafter, setup)
    return drafter


def _check_features(field: str, drafter: PagedDrafter, setup: DraftSetup) -> None:
    """Raises PluginError for hidden states that the stage lacks, and the errors of `PagedDrafter.features` for states of the
    stage's width."""
    shape, context, stage = drafter.feature_shape, setup.context, setup.model.shape
    if shape is None:
        return
    last = stage.num_layers
    if not shape.layers or not all(0 <= layer <= last for layer in shape.layers):
        problem = f"reads hidden states {list(shape.layers)} of stage {context.stage.name!r}, which has {last} layers"
        raise plugin_error(
            field, problem, f"use numbers from 0, the input embeddings, to {last} as FeatureShape.layers"
        )
    if isinstance(context.device, MetaDevice):  # a rank that runs no drafter
        return
    width = len(shape.layers) * stage.hidden_width
    with torch.inference_mode():
        states_TX = torch.zeros((1, width), dtype=context.dtype, device=context.device.torch_device)
        given = drafter.features(states_TX)
    hint = f"see FeatureShape.width; the stage's hidden states have width {stage.hidden_width:,}"
    returned_tensor(given, "features", code=drafter.features, shape=(1, shape.width), hint=hint)


def _check_stage(stage: str, model: ArModel) -> None:
    """Raises ConfigError for a stage whose steps cannot verify drafts yet."""
    shape, name = model.shape, type(model).__name__
    if isinstance(model, CodecModel):
        problem = f"is set, and each step of {name} needs the codec frame of the token before"
    elif shape.conditioned:
        problem = f"is set, and each step of {name} has inputs besides the token"
    elif len(shape.prompt_columns) > 1:
        problem = f"is set, and the prompt of {name} is not a row of its own tokens"
    else:
        return
    raise ConfigError(f"{stage}.drafter", problem, "leave it out: such a stage decodes one token a step")
