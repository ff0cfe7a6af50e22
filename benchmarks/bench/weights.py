"""One set of dummy weights per stage, device and process, whatever number of engines is built over it."""

from collections.abc import Callable
from typing import cast

import torch

from omni.pipeline import Stage
from omni.plugin import locate
from omni.stage import StageContext
from omni_ar.model import ArModel

_makers: dict[str, str] = {}
_models: dict[tuple[str, torch.device], ArModel] = {}
"""By stage and device: an engine also builds stages on a device without memory."""


def shared(stage: Stage) -> str:
    """A model class for stages. Stages of the same name share its weights."""
    assert stage.model is not None, "autoregressive stages have a model"
    if stage.model != f"{__name__}:build":
        _makers[stage.name] = stage.model
    return f"{__name__}:build"


def model_of(name: str, context: StageContext) -> ArModel:
    """The model of the stage `name`, built at the first call for a device."""
    key = name, context.device.torch_device
    if key not in _models:
        make = cast(Callable[[StageContext], ArModel], locate(_makers[name], "bench.weights"))
        _models[key] = make(context)
    return _models[key]


def build(context: StageContext) -> ArModel:
    return model_of(context.stage.name, context)


def forget() -> None:
    """Drops all models, before another checkpoint."""
    _models.clear()
    _makers.clear()
