"""Builds a family's front end."""

import inspect
from collections.abc import Callable
from typing import cast

from tokenizers import Tokenizer

from omni.checkpoint import Checkpoint
from omni.errors import (
    CheckpointError,
    ConfigError,
    OmniError,
    errors_as,
    fault_of,
    plugin_error,
    plugin_setup,
    quoted,
    type_of,
)
from omni.frontend.base import Frontend, TextDecoder
from omni.frontend.vocabulary import Vocabulary
from omni.pipeline import Pipeline
from omni.plugin import expect, locate
from omni.utils.origin import raised_in_plugin, with_origin, with_place

_FIELD = "pipeline.frontend"


def build_frontend(pipeline: Pipeline, checkpoint: Checkpoint, maker: str = "") -> Frontend:
    """The family's front end for the checkpoint. maker: the `origin` of the function that named it, for errors.

    Raises CheckpointError if its files cannot be read, ConfigError if it is none.
    """
    path, remedy = pipeline.frontend, f"correct {pipeline.frontend}"
    located = locate(path, _FIELD)
    if not callable(located):
        problem = with_place(f"{path} is {type_of(located)}, which cannot be called", maker)
        raise ConfigError(_FIELD, problem, "name a class or a function that takes a Checkpoint and returns a Frontend")
    build = cast(Callable[[Checkpoint], object], located)
    if inspect.isabstract(build):
        missing = ", ".join(sorted(vars(build)["__abstractmethods__"]))
        problem = with_origin(f"{path} is an abstract class: it lacks {missing}", code=build)
        raise plugin_error(_FIELD, problem, f"implement {missing}")

    def failed(error: BaseException) -> OmniError:
        if not isinstance(error, Exception) or raised_in_plugin(error):
            return plugin_error(_FIELD, fault_of(error, build), remedy)
        problem = f"its tokenizer or processor could not be read: {fault_of(error, build)}"
        again = f"download these files again; if they are right, {remedy}"
        return CheckpointError(str(checkpoint.path), problem, again)

    with errors_as(failed):
        frontend = build(checkpoint)
    if not isinstance(frontend, Frontend):
        problem = with_origin(f"gave {type_of(frontend)}", code=build)
        raise ConfigError(_FIELD, problem, "derive it from omni.frontend.base.Frontend")
    with plugin_setup(_FIELD, remedy, type(frontend)):
        _check(frontend, pipeline)
    return frontend


def _check(frontend: Frontend, pipeline: Pipeline) -> None:
    """Raises ConfigError for properties that a front end must not have. A property that raises fails the start, not a request."""
    vocabulary: object = frontend.vocabulary()
    for name, value, kind in (
        ("voices", frontend.voices, tuple),
        ("sample_rate", frontend.sample_rate, int),
        ("takes_names", frontend.takes_names, bool),
        ("takes_raw_prompts", frontend.takes_raw_prompts, bool),
        ("shortest_prompt", frontend.shortest_prompt, int),
        ("vocabulary", vocabulary, Vocabulary | None),
        ("vocabulary.tokenizer", getattr(vocabulary, "tokenizer", None), Tokenizer | None),
    ):
        if not isinstance(value, kind):
            problem = with_origin(f"is {quoted(value)}", code=type(frontend))
            raise ConfigError(
                f"{_FIELD}.{name}", problem, f"give a {kind.__name__ if isinstance(kind, type) else kind}"
            )
    _check_numbers(frontend)
    decoder: object = frontend.text_decoder()
    if pipeline.text_stage is not None and decoder is None:
        problem = f"has no text decoder, but stage {pipeline.text_stage!r} writes text"
        raise ConfigError(_FIELD, with_origin(problem, code=type(frontend)), "make one in Frontend.text_decoder")
    if decoder is not None:
        _check_decoder(decoder, frontend)


def _check_numbers(frontend: Frontend) -> None:
    """Raises ConfigError for voices that are not names, and for numbers out of range."""
    names: tuple[object, ...] = frontend.voices
    rate, shortest = frontend.sample_rate, frontend.shortest_prompt
    for name, value, right, remedy in (
        ("voices", names, all(isinstance(voice, str) and voice for voice in names), 'give names: ("one", "two")'),
        ("sample_rate", rate, rate > 0 and not isinstance(rate, bool), "give Hz, a positive number"),
        ("shortest_prompt", shortest, shortest >= 0 and not isinstance(shortest, bool), "give tokens, 0 or more"),
    ):
        if not right:
            raise ConfigError(f"{_FIELD}.{name}", with_origin(f"is {quoted(value)}", code=type(frontend)), remedy)


def _check_decoder(decoder: object, frontend: Frontend) -> None:
    """Raises PluginError for a text decoder that is a class, or lacks a method. Each request makes its own decoder later."""
    field, code = f"{_FIELD}.text_decoder", frontend.text_decoder
    if inspect.isclass(decoder):
        problem = with_origin(f"gave the class {decoder.__name__}", code=code)
        raise plugin_error(field, problem, f"return an object of it: {decoder.__name__}()")
    found = expect(decoder, TextDecoder, field, code)  # type: ignore[type-abstract]
    methods: tuple[tuple[str, object], ...] = (("push", found.push), ("finish", found.finish))
    for name, method in methods:
        if not callable(method):
            problem = with_origin(f"gave {type_of(decoder)} whose {name} is {type_of(method)}", code=code)
            raise plugin_error(field, problem, f"make {name} a method")
