"""Loads a stage's module from the stage's checkpoint."""

import zlib
from collections.abc import Mapping

from torch import nn

from omni.checkpoint import Destination, fill_dummy, load_module
from omni.stage import StageContext
from omni_ar.layers.expert_weights import expert_destination
from omni_ar.layers.linear import stacked_destinations


def load_weights(module: nn.Module, context: StageContext, prefixes: Mapping[str, str]) -> None:
    """Fills `module` with published weights, or with random ones if the context says so.

    prefixes: from the start of a published name to what replaces it; the first that fits counts. Experts published one by one
    go into stacked parameters, and so do the parts of each `StackedLinear`. Raises CheckpointError, as `load_module` does.
    """
    module.requires_grad_(False)
    if context.load_format == "dummy":
        fill_dummy(module, seed=zlib.crc32(context.stage.name.encode()))
        return
    parameters = dict(module.named_parameters())

    def rename(name: str) -> Destination | None:
        prefix = next(prefix for prefix in prefixes if name.startswith(prefix))
        local = prefixes[prefix] + name.removeprefix(prefix)
        expert = expert_destination(local)
        if expert is None:
            return Destination(local)
        if expert.part == "down" or expert.parameter not in parameters:
            return Destination(expert.parameter, (expert.expert,))
        width = parameters[expert.parameter].shape[1] // 2
        rows = slice(0, width) if expert.part == "gate" else slice(width, 2 * width)
        return Destination(expert.parameter, (expert.expert, rows))

    load_module(
        module,
        context.checkpoint,
        rename,
        prefixes=tuple(prefixes),
        stacked=stacked_destinations(module),
        device=context.device,
    )
