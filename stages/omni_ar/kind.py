"""Stage kind `"ar"`."""

from dataclasses import replace

from omni.device import declare_categories
from omni.errors import ConfigError
from omni.pipeline import Stage
from omni.stage import StageContext, build_model
from omni_ar.layers.attention import Attention
from omni_ar.layers.moe import SparseMoE
from omni_ar.layers.parallel import partitioned
from omni_ar.loaded import LoadedAr
from omni_ar.model import ArModel
from omni_ar.options import ArOptions
from omni_ar.run.phases import CATEGORIES

declare_categories(CATEGORIES)


class ArStageKind:
    """Autoregressive stages: continuous batching over paged KV.

    `Stage.model` names a function `(StageContext) -> ArModel` that builds the model on the device, weights loaded.
    """

    name = "ar"
    options = ArOptions
    tensor_parallel = True
    expert_parallel = True

    def load(self, context: StageContext) -> LoadedAr:
        return LoadedAr(context, build_part(context))


def build_part(context: StageContext) -> ArModel:
    """The stage's model, weights loaded: the part of this engine's rank, or a whole one. Raises ConfigError for experts that are to
    be divided, and of which the model has none; the engine learns it from the meta device, before weights are read."""
    if context.ranks is None:
        return build_model(context, ArModel)  # type: ignore[type-abstract]
    with partitioned(context.ranks.communicator, expert_parallel=context.stage.expert_parallel):
        model = build_model(context, ArModel)  # type: ignore[type-abstract]
        _check_experts(context.stage, model)
        _keep_shape(model)
        return model


def _check_experts(stage: Stage, model: ArModel) -> None:
    if stage.expert_parallel and not any(isinstance(module, SparseMoE) for module in model.modules()):
        problem = f"is true, and the model of stage {stage.name!r} has no experts"
        raise ConfigError(f"{stage.name}.expert_parallel", problem, "leave it out")


def _keep_shape(model: ArModel) -> None:
    """Makes `model.shape` the value that it has now, with the key and value heads of this rank's layers. A family computes it
    from its config, in the partition of the caller, and it is read outside of the partition later."""
    family, shape = type(model), model.shape
    held = {layer.num_kv_heads for layer in model.modules() if isinstance(layer, Attention)}
    if len(held) == 1:
        shape = replace(shape, num_kv_heads=held.pop())
    model.__class__ = type(family.__name__, (family,), {"shape": shape, "__module__": family.__module__})
