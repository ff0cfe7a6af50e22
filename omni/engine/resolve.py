"""The pipeline of a checkpoint: that of its family, with extensions and settings, checked before any weight is read."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import msgspec
import torch

from omni.checkpoint import Checkpoint, resolve
from omni.config import FAMILY, Setting, SettingsLayer
from omni.engine.choice import PipelineChoice, apply_choice, last_change
from omni.engine.configuration import configure
from omni.engine.parallelism import check_parallelism
from omni.engine.placement import places_of
from omni.engine.unfit import unfit
from omni.errors import (
    CheckpointError,
    ConfigError,
    OmniError,
    PluginError,
    ReturnedError,
    errors_as,
    fault_of,
    plugin_error,
    plugin_setup,
    quoted,
    type_of,
)
from omni.pipeline import (
    FRONTEND,
    Pipeline,
    Stage,
    validate,
)
from omni.pipeline.adapter import AdapterFactory
from omni.pipeline.parts import check_parts
from omni.pipeline.validate import check_unique
from omni.plugin import DrafterEntry, LogitsProcessorEntry, call_entry, expect, locate
from omni.plugin.locate import is_import_path
from omni.plugin.manager import Plugins
from omni.sampling import SamplingParams
from omni.stage import StageKind
from omni.utils.origin import origin, with_origin, with_place

_ANY = PipelineChoice()
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def open_checkpoint(
    model: str | Path, plugins: Plugins, *, weights: bool = True, family: str | None = None
) -> Checkpoint:
    """The checkpoint in a folder, or in a repository on the Hugging Face hub, downloaded if necessary.

    config.json determines the family, and `ModelFamily.files` further files; without a family no weights are
    downloaded.
    weights: False downloads none. family: as in `PipelineChoice`. Raises CheckpointError, and the errors of
    `Plugins.family_of`.
    """
    checkpoint = Checkpoint(resolve(model, weights=False))
    served_by = plugins.family_of(str(checkpoint.config.get("model_type", "")), family)
    if served_by is None or not (weights or served_by.files):
        return checkpoint
    return Checkpoint(resolve(model, weights=weights, files=served_by.files))


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked pipeline with all named objects imported, before any weight is read. settings: of its stages. processors: logits
    processors for its requests, by name. drafters: by name. extensions: that were applied, in order. makers: the `origin` of the
    function that chose each stage, by name; of the front end, under `FRONTEND`; and of settings that another function chose, by
    path. Empty if it is unknown, or if a file of the checkpoint determined the value. replicated: the stages that
    `tensor_parallel` gave replicas, since their kind is not cut by tensors, with the reason; the pipeline has the replicas."""

    pipeline: Pipeline
    kinds: Mapping[str, StageKind]
    adapters: Mapping[str, AdapterFactory]
    settings: tuple[Setting, ...] = ()
    processors: Mapping[str, LogitsProcessorEntry] = field(default_factory=dict)
    drafters: Mapping[str, DrafterEntry] = field(default_factory=dict)
    extensions: tuple[str, ...] = ()
    makers: Mapping[str, str] = field(default_factory=dict)
    replicated: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def naming_makers(self) -> Iterator[None]:
        """Adds the maker to ConfigErrors that loading stages raise about a missing model or about options that no user set."""
        try:
            yield
        except ConfigError as error:
            maker = self._maker_of(error.field)
            if not maker:
                raise
            raise ConfigError(error.field, with_place(error.problem, maker), error.remedy) from error

    def _maker_of(self, field: str) -> str:
        lacking = [
            s.name for s in self.pipeline.stages if s.model is None and field == f"pipeline.stages.{s.name}.model"
        ]
        chosen = [s.path for s in self.settings if s.path == field and s.origin == FAMILY]
        path = next(iter((*lacking, *chosen)), "")
        while path not in self.makers and "." in path:
            path = path.rpartition(".")[0]
        return self.makers.get(path, "")

    def packages(self) -> frozenset[str]:
        """The top-level packages of the stages' code: of their kinds, models, logits processors and drafters, and omni's."""
        kinds = {type(kind).__module__ for kind in self.kinds.values()}
        models = {stage.model for stage in self.pipeline.stages if stage.model is not None}
        processors = {entry.processor for entry in self.processors.values()}
        drafters = {entry.drafter for entry in self.drafters.values()}
        named = {name.partition(":")[0].partition(".")[0] for name in kinds | models | processors | drafters}
        # The stage kinds of omni share code.
        return frozenset(named | {name for name in list(sys.modules) if name.startswith("omni") and "." not in name})


def resolve_pipeline(
    checkpoint: Checkpoint, plugins: Plugins, layers: Sequence[SettingsLayer] = (), choice: PipelineChoice = _ANY
) -> Plan:
    """The checkpoint's pipeline with the user's changes, then with settings applied, checked as a whole.
    `engine_options` handles the engine's settings.

    Raises ConfigError, CheckpointError or PluginError.
    """
    model_type = str(checkpoint.config.get("model_type", ""))
    family = plugins.family_of(model_type, choice.family)
    if family is None:
        raise _unserved(model_type, plugins)
    build = cast(Callable[[Checkpoint], object], locate(family.pipeline, f"families.{family.name}.pipeline"))
    if checkpoint.config.get("quantization_config"):
        problem = "quantized weights are not supported"
        raise CheckpointError("config.json: quantization_config", problem, "use the checkpoint in bfloat16 or float32")
    field, remedy = f"families.{family.name}.pipeline", f"correct {family.pipeline}"
    unfitting, before = f"does not fit family {family.name!r}", (checkpoint.reads, checkpoint.config_reads)

    def failed(error: BaseException) -> OmniError:
        if (checkpoint.reads, checkpoint.config_reads) == before:
            return plugin_error(field, fault_of(error, build), remedy)
        return unfit(error, build, field=field, unbuilt="", unfitting=unfitting, path=family.pipeline)

    with errors_as(failed):
        built = build(checkpoint)
    pipeline = expect(built, Pipeline, field, build)
    with plugin_setup(field, remedy, build):
        check_parts(pipeline, build)
        if pipeline.family != family.name:
            problem = f"pipeline.family is {quoted(pipeline.family)}, and its entry's name is {family.name!r}"
            raise ReturnedError(f"{problem}: give both the same", build)
    return plan_of(pipeline, plugins, layers, choice, build)


def plan_of(
    pipeline: Pipeline,
    plugins: Plugins,
    layers: Sequence[SettingsLayer] = (),
    choice: PipelineChoice = _ANY,
    code: object = None,
) -> Plan:
    """The pipeline with the user's changes, then with settings applied, checked as a whole. Raises ConfigError or PluginError.
    code: the function that made it, to be named in errors."""
    with _named(code):
        check_unique(pipeline)  # before an extension replaces one of two equal parts
    changed, last = apply_choice(pipeline, plugins, choice), last_change(plugins, choice)
    makers = _makers(pipeline, changed, code, last if _changes(choice) == 1 else None)
    code = last or code
    with _named(code):
        check_unique(changed)
        _check_texts(changed)
    configured, settings = configure(changed, layers)
    _check_connectors(configured, plugins, settings, layers, code)
    plan = check_pipeline(configured, plugins, code)
    return replace(plan, settings=settings, extensions=tuple(choice.extensions), makers=makers)


def _changes(choice: PipelineChoice) -> int:
    return len(choice.extensions) + (choice.wrap is not None)


def _makers(given: Pipeline, changed: Pipeline, code: object, change: object) -> Mapping[str, str]:
    """See `Plan`. code: the function that made `given`. change: the only one that changed it; None if several did."""
    kept = {stage.name: stage in given.stages for stage in changed.stages}
    kept[FRONTEND] = changed.frontend == given.frontend
    makers = {name: origin(code=code if is_kept else change) for name, is_kept in kept.items()}
    for stage in changed.stages:
        if kept[stage.name]:
            # A family takes sampling defaults from generation_config.json.
            options = msgspec.structs.asdict(stage.options)
            makers |= {f"{stage.name}.{key}": "" for key, value in options.items() if isinstance(value, SamplingParams)}
    return makers


@contextmanager
def _named(code: object) -> Iterator[None]:
    """Adds the `origin` of the function that made a pipeline to the ConfigErrors of its checks."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(error.field, with_origin(error.problem, code=code), error.remedy) from error


def _check_texts(pipeline: Pipeline) -> None:
    """Raises ConfigError for texts of a pipeline that are read later, where its author is unknown."""
    if not is_import_path(pipeline.frontend):
        raise ConfigError(
            "pipeline.frontend", f"{quoted(pipeline.frontend)} is not an import path", 'write "module:class"'
        )
    for stage in pipeline.stages:
        if stage.dtype is not None:
            check_formats(stage.dtype, field=f"pipeline.stages.{stage.name}.dtype")
        places_of(stage.place, f"pipeline.stages.{stage.name}.place")


def _check_connectors(
    pipeline: Pipeline, plugins: Plugins, settings: Sequence[Setting], layers: Sequence[SettingsLayer], code: object
) -> None:
    """Raises PluginError for the name of a connector that is not installed. code: as of `plan_of`."""
    for edge in pipeline.edges:
        if edge.connector is None:
            continue
        try:
            plugins.connectors[edge.connector]
        except PluginError as error:
            path = f"{edge.setting}.connector"
            chosen = next(setting.origin for setting in settings if setting.path == path)
            by_user = next((layer for layer in layers if layer.origin == chosen), None)
            if by_user is not None:
                raise PluginError(f"{by_user.name(path)}: {error}") from error
            raise PluginError(with_origin(f"{path}: {error}", code=code)) from error


def _unserved(model_type: str, plugins: Plugins) -> CheckpointError:
    known = sorted(t for f in plugins.families.entries.values() for t in f.model_types)
    remedy = f"known are {', '.join(known) or 'none'}"
    if plugins.families.broken:
        remedy += f" (failed to load: {', '.join(plugins.families.broken)}, see `omni plugins`)"
    problem = f"no plugin serves model type {model_type!r}"
    return CheckpointError("config.json: model_type", problem, f"{remedy}; install a plugin that serves it")


def check_pipeline(pipeline: Pipeline, plugins: Plugins, code: object = None) -> Plan:
    """Checks a pipeline against the graph rules and the registered kinds, imports its models and adapters, and gives stages
    that cannot be cut by tensors replicas. code: as of `plan_of`."""
    with _named(code):
        validate(pipeline)
    kinds: dict[str, StageKind] = {}
    stages: list[Stage] = []
    replicated: dict[str, str] = {}
    for stage in pipeline.stages:
        try:
            entry = plugins.kinds[stage.kind]
        except PluginError as error:
            raise PluginError(with_origin(f"pipeline.stages.{stage.name}.kind: {error}", code=code)) from error
        kind = call_entry(entry.kind, f"kinds.{entry.name}", StageKind)  # type: ignore[type-abstract]
        if kind.name != entry.name:
            problem = with_origin(f"is {quoted(kind.name)}, and its entry's name is {entry.name!r}", code=type(kind))
            raise plugin_error(f"kinds.{entry.name}.name", problem, "give both the same")
        wanted: object = kind.options
        if not inspect.isclass(wanted):
            problem = with_origin(f"is {quoted(wanted)}, not a class", code=type(kind))
            raise plugin_error(f"kinds.{entry.name}.options", problem, "name the class of the stages' options")
        if not isinstance(stage.options, wanted):
            problem = with_origin(f"is a {type(stage.options).__name__}", code=code)
            remedy = f"kind {stage.kind!r} takes {kind.options.__name__}"
            raise ConfigError(f"pipeline.stages.{stage.name}.options", problem, remedy)
        whole, reason = check_parallelism(stage, kind)
        stages.append(whole)
        if reason is not None:
            replicated[stage.name] = reason
        if stage.model is not None:
            locate(stage.model, f"pipeline.stages.{stage.name}.model", code)
        if stage.dtype is not None:
            check_formats(stage.dtype, field=f"{stage.name}.dtype")
        kinds[stage.name] = kind
    adapters = {
        edge.name: _adapter(edge.adapter, f"pipeline.edges.{edge.name}.adapter", code) for edge in pipeline.edges
    }
    for output in pipeline.outputs:
        if output.route is not None:
            field = f"pipeline.outputs.{output.modality}.adapter"
            adapters[output.route.name] = _adapter(output.route.adapter, field, code)
    return Plan(
        msgspec.structs.replace(pipeline, stages=tuple(stages)) if replicated else pipeline,
        kinds,
        adapters,
        processors=plugins.processors.entries,
        drafters=plugins.drafters.entries,
        replicated=replicated,
    )


def _adapter(path: str, field: str, code: object) -> AdapterFactory:
    """Raises ConfigError for an object that is not callable."""
    factory = locate(path, field, code)
    if not callable(factory):
        remedy = "name a class or a function that takes the edge's arguments and returns an Adapter"
        raise ConfigError(field, with_origin(f"{path} is {type_of(factory)}", code=factory), remedy)
    return cast(AdapterFactory, factory)


def check_formats(dtype: str, load_format: str = "auto", field: str = "dtype") -> None:
    """Raises ConfigError for formats that `load_stages` does not support. field: the name of the dtype's setting."""
    if dtype not in DTYPES:
        raise ConfigError(field, f"{dtype!r} is not supported", f"use one of {', '.join(DTYPES)}")
    if load_format not in ("auto", "dummy"):
        raise ConfigError("load_format", f"{load_format!r} is not known", 'use "auto" or "dummy"')
