"""Stage kind `"ar"`."""

from dataclasses import replace
from typing import Literal

from omni.device import declare_categories
from omni.device.meta import MetaDevice
from omni.errors import ConfigError
from omni.parallel import EqualRanks
from omni.stage import StageContext, build_model
from omni.utils.log import safe_logger
from omni_ar.layer_ranges import measured_range
from omni_ar.layers.attention import Attention, AttentionProjections
from omni_ar.layers.decoder import DecoderLayer, DecoderLayers
from omni_ar.layers.linear import GatedMLP
from omni_ar.layers.moe import SharedExpertMoE, SparseMoE
from omni_ar.layers.parallel import LayerRange, partitioned
from omni_ar.loaded import LoadedAr
from omni_ar.model import ArModel
from omni_ar.options import MEASURED, ArOptions
from omni_ar.run.phases import CATEGORIES

declare_categories(CATEGORIES)
_log = safe_logger(__name__)


class ArStageKind:
    """Autoregressive stages: continuous batching over paged KV.

    `Stage.model` names a function `(StageContext) -> ArModel` that builds the model on the device, weights loaded.
    """

    name = "ar"
    options = ArOptions
    tensor_parallel = True
    expert_parallel = True
    pipeline_parallel = True

    def load(self, context: StageContext) -> LoadedAr:
        return LoadedAr(context, build_rank_model(context))


def build_rank_model(context: StageContext) -> ArModel:
    """The stage's model, weights loaded: whole, or as this engine's rank holds it. Raises ConfigError if its layers or experts
    cannot be divided among ranks as the settings say; the meta device shows that before processes of ranks start and before
    weights are read."""
    layer_range = _layer_range(context)
    if layer_range is not None and _pipeline_layers(context) == MEASURED and not isinstance(context.ranks, EqualRanks):
        # The trial that is measured has equal numbers of layers, and random weights.
        trial = replace(context, load_format="dummy")
        layer_range = measured_range(trial, _build(trial, layer_range), layer_range)
    model = _build(context, layer_range)
    if not isinstance(context.device, MetaDevice):
        _log_whole(context, model)
    return model


def _build(context: StageContext, layer_range: LayerRange | None) -> ArModel:
    if context.ranks is None:
        return build_model(context, ArModel)  # type: ignore[type-abstract]
    with partitioned(context.ranks.tensor, layer_range, expert_parallel=context.stage.expert_parallel):
        model = build_model(context, ArModel)  # type: ignore[type-abstract]
        if layer_range is not None and sum(isinstance(each, DecoderLayers) for each in model.modules()) != 1:
            problem = f"is {layer_range.size}, and {type(model).__name__} does not have exactly one `DecoderLayers`"
            raise ConfigError(f"{layer_range.stage}.pipeline_parallel", problem, "leave it out")
        if context.stage.expert_parallel:
            _check_experts(context, model, layer_range)
        _keep_shape(model)
        return model


def _log_whole(context: StageContext, model: ArModel) -> None:
    """Warns, at rank 0, of modules that stay whole because their sizes are not divisible by the number of ranks."""
    if context.ranks is None or context.ranks.tensor is None or context.ranks.rank:
        return
    layers = [
        part
        for decoder in model.modules()
        if isinstance(decoder, DecoderLayers)
        for layer in decoder.layers
        if isinstance(layer, DecoderLayer)
        for part in (layer.self_attn, layer.mlp)
    ]
    for name, parts in (
        ("attention", [part for part in layers if isinstance(part, AttentionProjections)]),
        ("feed-forward", [part for part in layers if isinstance(part, GatedMLP)]),
        ("experts", [part for part in layers if isinstance(part, SparseMoE)]),
    ):
        if count := sum(not part.is_cut for part in parts):
            _log.warning(
                "%s: tensor_parallel=%d does not divide the %s of %d of %d layers: every rank holds and computes them whole",
                context.stage.name,
                context.ranks.tensor.size,
                name,
                count,
                len(parts),
            )


def _check_experts(context: StageContext, model: ArModel, layer_range: LayerRange | None) -> None:
    assert context.ranks is not None
    tensor, name = context.ranks.tensor, context.stage.name
    mixtures = _mixtures(model)
    if not mixtures and layer_range is not None:
        # Mixtures in layers of other ranks.
        with partitioned(tensor, expert_parallel=True):
            empty = replace(context, device=MetaDevice(), load_format="dummy")
            mixtures = _mixtures(build_model(empty, ArModel))  # type: ignore[type-abstract]
    field = f"{name}.expert_parallel"
    if not mixtures:
        raise ConfigError(field, f"is true, and the model of stage {name!r} has no experts", "leave it out")
    whole = next((mixture for mixture in mixtures if not mixture.is_divided), None)
    if whole is not None and tensor is not None:
        number, what = whole.num_experts, f"the {whole.num_experts} experts of a layer"
        if isinstance(whole, SharedExpertMoE) and not number % tensor.size:
            number = whole.shared_expert.down_proj.in_features
            what = f"the width {number} of the shared expert"
        problem = f"is true, and {name}.tensor_parallel={tensor.size} does not divide {what}"
        remedy = f"set {name}.tensor_parallel to a divisor of {number}, or leave {field} out"
        raise ConfigError(field, problem, remedy)


def _mixtures(model: ArModel) -> list[SparseMoE]:
    return [module for module in model.modules() if isinstance(module, SparseMoE)]


def _layer_range(context: StageContext) -> LayerRange | None:
    layers, pipeline = _pipeline_layers(context), context.ranks.pipeline if context.ranks is not None else None
    if pipeline is None:
        return None
    return LayerRange(context.stage.name, pipeline.position, pipeline.size, () if layers == MEASURED else layers)


def _pipeline_layers(context: StageContext) -> tuple[int, ...] | Literal["measured"]:
    layers = _options_of(context).pipeline_layers
    if layers is not None:
        return layers
    # On a CPU with other work, times vary too much to divide layers by them.
    return MEASURED if context.device.torch_device.type == "cuda" else ()


def _options_of(context: StageContext) -> ArOptions:
    assert isinstance(context.options, ArOptions)
    return context.options


def _keep_shape(model: ArModel) -> None:
    """Stores the present value of `model.shape`, with the key and value heads of this rank's layers. A family's `shape` depends on
    the caller's partition, and later readers are outside of it."""
    family, shape = type(model), model.shape
    kv_heads = {layer.num_kv_heads for layer in model.modules() if isinstance(layer, Attention)}
    if len(kv_heads) == 1:
        shape = replace(shape, num_kv_heads=kv_heads.pop())
    model.__class__ = type(family.__name__, (family,), {"shape": shape, "__module__": family.__module__})
