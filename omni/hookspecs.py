"""The plugin contract. Hooks run once, at start-up, and fill frozen registries; none runs per request or per token.

A plugin is a module named by an entry point in the group `omni`. Its hook implementations are marked with `omni.hookimpl`.
Entry modules import no torch: they register `"module:attribute"` names, which are imported when a pipeline needs them.
"""

from collections.abc import Sequence

import pluggy

from omni.plugin.entries import (
    ConnectorEntry,
    DrafterEntry,
    LogitsProcessorEntry,
    ModelFamily,
    PipelineExtension,
    StageKindEntry,
)

GROUP = "omni"
hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@hookspec
def omni_model_families() -> Sequence[ModelFamily]:  # type: ignore[empty-body]
    """The model families of this plugin. Called once, when plugins are loaded.

    Returns one `ModelFamily` for each; a checkpoint is matched by the `model_type` in its config.json. A name that another
    plugin claims too belongs to neither; its use is an error that names both. Of two families that serve one model type,
    the user chooses one by name.

    Example:

        @hookimpl
        def omni_model_families():
            pipeline = "my_plugin.pipeline:pipeline"
            return [ModelFamily(name="mine", model_types=("my_model",), pipeline=pipeline)]
    """


@hookspec
def omni_stage_kinds() -> Sequence[StageKindEntry]:  # type: ignore[empty-body]
    """The stage kinds of this plugin. Called once, when plugins are loaded.

    Returns one `StageKindEntry` for each: the name that `Stage.kind` uses and where to find an `omni.stage.StageKind`.

    Example:

        @hookimpl
        def omni_stage_kinds():
            return [StageKindEntry(name="denoiser", kind="my_plugin.kind:DenoiserKind")]
    """


@hookspec
def omni_connectors() -> Sequence[ConnectorEntry]:  # type: ignore[empty-body]
    """The connectors of this plugin. Called once, when plugins are loaded.

    Returns one `ConnectorEntry` for each: its name and where to find a factory of `omni.connector.Connector`.

    Example:

        @hookimpl
        def omni_connectors():
            return [ConnectorEntry(name="fabric", connector="my_plugin.fabric:FabricConnector")]
    """


@hookspec
def omni_logits_processors() -> Sequence[LogitsProcessorEntry]:  # type: ignore[empty-body]
    """The logits processors of this plugin. Called once, when plugins are loaded.

    Returns one `LogitsProcessorEntry` for each: its name in requests (`SamplingParams.processors`), and where to find a factory of
    an `omni_ar.processors.LogitsProcessor`, which runs on the device, or of a `HistoryProcessor`, which runs on the host, so that
    requests with it wait for each of their tokens.

    Example:

        @hookimpl
        def omni_logits_processors():
            return [LogitsProcessorEntry(name="boost", processor="my_plugin.boost:Boost")]
    """


@hookspec
def omni_drafters() -> Sequence[DrafterEntry]:  # type: ignore[empty-body]
    """The drafters of this plugin. Called once, when plugins are loaded.

    Returns one `DrafterEntry` for each: its name in the option `drafter` of an autoregressive stage, and where to find a factory of
    an `omni_ar.drafters.Drafter`, called with the option `drafter_args` and an `omni_ar.drafters.DraftSetup`.

    Example:

        @hookimpl
        def omni_drafters():
            return [DrafterEntry(name="echo", drafter="my_plugin.echo:EchoDrafter")]
    """


@hookspec
def omni_pipeline_extensions() -> Sequence[PipelineExtension]:  # type: ignore[empty-body]
    """Changes of this plugin to the pipelines of other families. Called once, when plugins are loaded.

    Returns one `PipelineExtension` for each: the name by which users choose it (`Omni(extensions=["mood"])`, `omni run --with
    mood`), and where to find a function `(Pipeline) -> Pipeline` that adds stages, edges and outputs or replaces them. An extension
    is applied only if the user names it.

    Example:

        @hookimpl
        def omni_pipeline_extensions():
            return [PipelineExtension(name="mood", extend="my_plugin.mood:extend", families=("my_family",))]
    """
