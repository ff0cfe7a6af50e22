"""The user's choice of a pipeline: its family, the extensions of plugins, and a function of the user's own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from omni.errors import ConfigError, OmniError, PluginError, ReturnedError, errors_as, fault_of, quoted, type_of
from omni.pipeline import Pipeline
from omni.pipeline.parts import check_parts
from omni.pipeline.pipeline import UnknownPartError
from omni.plugin import PipelineExtension, locate
from omni.plugin.manager import Plugins
from omni.utils.interrupts import is_interrupt
from omni.utils.origin import with_origin

PipelineFunction = Callable[[Pipeline], Pipeline]
"""Changes a pipeline before settings are applied to it and before it is checked."""
_REMEDY = "give a function that takes a Pipeline and returns one"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineChoice:
    """family: the name of a family that serves the model type; None for the only one. extensions: names, in the order in
    which they are applied. wrap: applied last."""

    family: str | None = None
    extensions: Sequence[str] = ()
    wrap: PipelineFunction | None = None


def apply_choice(pipeline: Pipeline, plugins: Plugins, choice: PipelineChoice) -> Pipeline:
    """Returns the family's pipeline after the extensions, then `wrap`, have changed it. Raises PluginError if an extension is not
    installed or fails, and ConfigError if it does not extend this family or if `wrap` fails."""
    _check_names(choice.extensions)
    for name in choice.extensions:
        if list(choice.extensions).count(name) > 1:
            raise ConfigError("extensions", f"{name!r} is named twice", "name each extension once")
        entry = plugins.extensions[name]
        if entry.families and pipeline.family not in entry.families:
            problem = f"{name!r} does not extend family {pipeline.family!r}"
            raise ConfigError("extensions", problem, f"it extends {', '.join(entry.families)}")
        pipeline = _extend(pipeline, entry, plugins)
    if choice.wrap is not None:
        if not callable(choice.wrap):
            raise ConfigError("pipeline", f"{quoted(choice.wrap)} is {type_of(choice.wrap)}", _REMEDY)
        try:
            pipeline = _checked(choice.wrap(pipeline), choice.wrap)
        except OmniError:
            raise
        except UnknownPartError as error:
            raise ConfigError(error.field, with_origin(error.problem, error, choice.wrap), error.remedy) from error
        except BaseException as error:
            if is_interrupt(error):
                raise
            problem = f"the function failed: {fault_of(error, choice.wrap)}"
            raise ConfigError("pipeline", problem, _REMEDY) from error
    return pipeline


def _check_names(names: object) -> None:
    """Raises ConfigError for extensions that are not a list of names."""
    if isinstance(names, str):
        raise ConfigError("extensions", f"{names!r} is a string", f"give a list: [{names!r}]")
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ConfigError("extensions", f"{quoted(names)} is not a list of names", 'give a list: ["name"]')


def last_change(plugins: Plugins, choice: PipelineChoice) -> object:
    """The function that changed the pipeline last, to be named in errors; None if none did."""
    if choice.wrap is not None:
        return choice.wrap
    if not choice.extensions:
        return None
    entry = plugins.extensions[choice.extensions[-1]]
    return locate(entry.extend, f"extensions.{entry.name}")


def _extend(pipeline: Pipeline, entry: PipelineExtension, plugins: Plugins) -> Pipeline:
    extend = cast(PipelineFunction, locate(entry.extend, f"extensions.{entry.name}"))

    def failed(error: BaseException) -> PluginError:
        what = f"pipeline extension {entry.name!r} of plugin {plugins.extensions.owners[entry.name]!r}"
        problem = f"{what} failed for family {pipeline.family!r}: {fault_of(error, extend)}; {entry.extend}"
        return PluginError(f"{problem}; report it to the plugin's author")

    with errors_as(failed):
        extended = _checked(extend(pipeline), extend)
        if extended.family != pipeline.family:
            problem = f"pipeline.family is {quoted(extended.family)} now, not {quoted(pipeline.family)}"
            raise ReturnedError(f"{problem}: leave the family as it is", extend)
    return extended


def _checked(pipeline: object, code: object) -> Pipeline:
    if not isinstance(pipeline, Pipeline):
        raise ReturnedError(f"it returned {type_of(pipeline)}, not a Pipeline", code)
    check_parts(pipeline, code)
    return pipeline
