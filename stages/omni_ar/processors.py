"""Logits processors: changes to logits that plugins provide and requests select by name (`SamplingParams.processors`). They run on
the device, or on the host if they read the tokens.

Shape legend: R rows of a batch, N rows of the stage, V vocabulary, W parameters of a row.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import isclass
from math import isfinite

import msgspec
from torch import Tensor

from omni.errors import (
    ConfigError,
    InputError,
    OmniError,
    PluginError,
    ReturnedError,
    fault_of,
    name_of,
    plugin_error,
    plugin_setup,
    quoted,
    shortened,
    type_of,
)
from omni.plugin import LogitsProcessorEntry, expect, locate
from omni.sampling import HostLogitsProcessor
from omni.stage import method_name, returned_tensor
from omni.utils.origin import with_origin


@dataclass(frozen=True, slots=True)
class ProcessedRows:
    """A batch's rows, on the device, read-only. params_RW: fp32, as `LogitsProcessor.pack` returned them; zeros for rows that do
    not use the processor. num_outputs_R: int64, number of generated tokens. last_R: int64, the newest token, -1 before the first.
    rows_R: int64, indexes of the rows in the stage. counts_NV: integers, for all rows of the stage, times each id was generated."""

    params_RW: Tensor
    num_outputs_R: Tensor
    last_R: Tensor
    rows_R: Tensor
    counts_NV: Tensor

    @property
    def counts_RV(self) -> Tensor:
        """Number of times each id was generated. Every access gathers it."""
        return self.counts_NV.index_select(0, self.rows_R)


class LogitsProcessor(ABC):
    """Changes logits on the device, from device state alone. It does not limit run-ahead. One object per stage, without history."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Parameters of a row, W; 0 if there are none."""

    @abstractmethod
    def pack(self, args: Mapping[str, object], vocab_size: int) -> Sequence[float]:
        """A request's arguments as W numbers, stored as fp32: an id below 2**24 is exact. Must be fast; runs on the host, in any
        thread. Must refuse ids outside the vocabulary: `apply` receives every accepted value.

        Raises InputError naming the wrong argument; any other exception is reported as an InputError.
        """

    @abstractmethod
    def apply(self, logits_RV: Tensor, rows: ProcessedRows) -> Tensor:
        """New logits, fp32 `[R, V]`; the values of rows that do not use the processor are ignored.

        Runs inside a device phase: no synchronization, no control flow on tensor values, and a row's result depends on that row
        alone. logits_RV: fp32, must not be modified; -inf is impossible.
        """


class HistoryProcessor(ABC):
    """Changes logits on the host, from the tokens that a request has generated. Its rows wait for each token; other rows do not."""

    @abstractmethod
    def open(self, args: Mapping[str, object], vocab_size: int) -> HostLogitsProcessor:
        """A host processor for one request. Must be fast; runs in any thread. Also called only to check the arguments. Raises
        InputError naming the wrong argument; any other exception is reported as an InputError."""


Arguments = Mapping[str, Mapping[str, object]]
"""`SamplingParams.processors`: arguments by name."""

_REMEDY = "give the arguments that the processor takes"


@dataclass(frozen=True, slots=True)
class NamedProcessor:
    """A device-side processor with its name in requests."""

    name: str
    processor: LogitsProcessor
    width: int

    def pack(self, args: Mapping[str, object], vocab_size: int) -> tuple[float, ...]:
        """Returns the arguments as `width` numbers. Raises InputError naming the argument, and PluginError for values that are
        invalid for all arguments."""
        pack = self.processor.pack
        with _naming(self.name, pack):
            packed: object = pack(args, vocab_size)
            params = tuple(float(param) for param in packed) if isinstance(packed, Iterable) else None
        if params is None:
            problem = with_origin(f"gave {type_of(packed)}", code=pack)
            raise plugin_error(f"processors.{self.name}.pack", problem, "return a list of numbers")
        if len(params) != self.width or not all(map(isfinite, params)):
            problem = f"packs {params}: not finite numbers, {self.width} of them"
            raise InputError(self.name, with_origin(problem, code=pack), _REMEDY)
        return params

    def apply(self, logits_RV: Tensor, rows: ProcessedRows) -> Tensor:
        """Raises ReturnedError for a result of another shape or dtype, which torch would repeat or convert silently, and for one
        on another device."""
        given: object = self.processor.apply(logits_RV, rows)
        what, hint = f"apply of logits processor {self.name!r},", "return new logits"
        code, shape, dtype = self.processor.apply, logits_RV.shape, logits_RV.dtype
        made = returned_tensor(given, what, code=code, shape=shape, dtype=dtype, hint=hint)
        if made.device != logits_RV.device:
            problem = (
                f"gave logits on {made.device}, not on {logits_RV.device}: make them on the device of its argument"
            )
            raise ReturnedError(f"{method_name(code, what)} {problem}", code)
        return made


class ProcessorRegistry:
    """A stage's processors, imported once. A processor that cannot be imported fails only the requests that use it."""

    def __init__(self, entries: Mapping[str, LogitsProcessorEntry], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._broken: dict[str, str] = {}
        self._history: dict[str, HistoryProcessor] = {}
        on_device: list[NamedProcessor] = []
        for name in sorted(entries):
            try:
                processor = _build(entries[name])
            except OmniError as error:
                self._broken[name] = str(error)
                continue
            if isinstance(processor, HistoryProcessor):
                self._history[name] = processor
            else:
                on_device.append(NamedProcessor(name, processor, processor.width))
        self.on_device = tuple(on_device)
        """Sorted by name, the order of application."""
        self._on_device = {processor.name: processor for processor in on_device}

    def check(self, requested: Arguments | None, field: str) -> None:
        """Raises InputError, naming `field`, for an unknown name or wrong arguments; PluginError for a processor that could not be
        loaded. In any thread."""
        for name, args in (requested or {}).items():
            if name in self._broken:
                raise PluginError(f"logits processor {name!r} could not be loaded: {self._broken[name]}")
            try:
                if name in self._on_device:
                    self._on_device[name].pack(args, self._vocab_size)
                elif name in self._history:
                    self._open(name, args)
                else:
                    known = ", ".join(sorted({*self._on_device, *self._history})) or "none"
                    raise InputError(
                        shortened(name), "is not a logits processor", f"known are {known}; see `omni plugins`"
                    )
            except InputError as error:
                raise InputError(
                    f"{field}.{error.field}", error.problem, error.remedy, error.operator_remedy
                ) from error

    def check_defaults(self, requested: Arguments | None, field: str) -> None:
        """`check` of the stage's defaults: raises ConfigError in place of InputError."""
        try:
            self.check(requested, field)
        except InputError as error:
            raise ConfigError(error.field, error.problem, error.remedy) from error

    def params(self, requested: Arguments | None) -> dict[str, tuple[float, ...]]:
        """The row's parameters of each requested device-side processor. `requested` has passed `check`."""
        requested = requested or {}
        return {p.name: p.pack(requested[p.name], self._vocab_size) for p in self.on_device if p.name in requested}

    def host_processors(self, requested: Arguments | None) -> tuple[HostLogitsProcessor, ...]:
        """A new host processor for each requested host-side processor, sorted by name. `requested` has passed `check`."""
        requested = requested or {}
        return tuple(self._open(name, requested[name]) for name in self._history if name in requested)

    def _open(self, name: str, args: Mapping[str, object]) -> HostLogitsProcessor:
        processor = self._history[name]
        with _naming(name, processor.open):
            opened: object = processor.open(args, self._vocab_size)
        field = f"processors.{name}.open"
        if isclass(opened):
            problem = with_origin(f"gave the class {name_of(opened)}", code=processor.open)
            raise plugin_error(field, problem, "return an object of it")
        return expect(opened, HostLogitsProcessor, field, processor.open)  # type: ignore[type-abstract]


def _build(entry: LogitsProcessorEntry) -> LogitsProcessor | HistoryProcessor:
    build = locate(entry.processor, f"processors.{entry.name}")
    if not callable(build):
        problem = with_origin(f"is {type_of(build)}, which cannot be called", code=build)
        raise plugin_error(entry.processor, problem, "name a class or a function")
    with plugin_setup(entry.processor, "correct it", build):
        processor = build()
        width: object = processor.width if isinstance(processor, LogitsProcessor) else 0
    if not isinstance(processor, LogitsProcessor | HistoryProcessor):
        problem = f"gives {type_of(processor)}, neither a LogitsProcessor nor a HistoryProcessor"
        raise plugin_error(entry.processor, with_origin(problem, code=build), "derive it from one of them")
    if not _is_width(width):
        problem = with_origin(f"has the width {quoted(width)}", code=type(processor))
        raise plugin_error(entry.processor, problem, "give the number of its parameters, 0 or more")
    return processor


def _is_width(width: object) -> bool:
    return isinstance(width, int) and not isinstance(width, bool) and width >= 0


@contextmanager
def _naming(name: str, code: object) -> Iterator[None]:
    """Names the argument in errors of `code`, a method of the processor of this name."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{name}.{error.field}", error.problem, error.remedy, error.operator_remedy) from error
    except OmniError:
        raise
    except msgspec.ValidationError as error:
        raise InputError(name, str(error), _REMEDY) from error
    except Exception as error:
        raise InputError(name, fault_of(error, code), _REMEDY) from error
