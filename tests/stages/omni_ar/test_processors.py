"""A stage's logits processors: imported once, checked at submission; a broken one fails only requests that use it."""

from collections.abc import Mapping

import msgspec
import pytest
import torch

from omni.errors import ConfigError, InputError, PluginError, ReturnedError, fault_of
from omni.hookspecs import hookimpl
from omni.plugin import LogitsProcessorEntry
from omni.sampling import LogitsEdit
from omni_ar.processors import HistoryProcessor, LogitsProcessor, NamedProcessor, ProcessedRows, ProcessorRegistry
from tests.support.plugins import plugins_of


class Add(LogitsProcessor):
    width = 1

    def pack(self, args, vocab_size):
        if args["by"] == 0:
            raise InputError("by", "is 0", "add something")
        return args["by"] if isinstance(args["by"], list) else [args["by"]]

    def apply(self, logits_RV, rows):
        return logits_RV + rows.params_RW


class Count:
    def __init__(self):
        self.tokens = []

    def push(self, token):
        self.tokens.append(token)
        return False

    def edit(self):
        return LogitsEdit()


class Counting(HistoryProcessor):
    def open(self, args, vocab_size):
        msgspec.convert(args, dict[str, int])
        return Count()


class Fails(Add):
    def __init__(self):
        raise OSError("no such table")


class Widthless(Add):
    width = None  # type: ignore[assignment]


class Unknowable(Add):
    @property
    def width(self):  # type: ignore[override]
        raise KeyError("width")


class Forgetful(HistoryProcessor):
    def open(self, args, vocab_size):
        return None


class Classy(HistoryProcessor):
    def open(self, args, vocab_size):
        return Count


class Unpacked(Add):
    def pack(self, args, vocab_size):
        return args.get("by")


def stranger():
    return 7


NOTHING = None


@hookimpl
def omni_logits_processors():
    here = {
        "zoom": "Add",
        "add": "Add",
        "count": "Counting",
        "unnamed": "Sub",
        "fails": "Fails",
        "widthless": "Widthless",
        "unknowable": "Unknowable",
        "forgetful": "Forgetful",
        "classy": "Classy",
        "unpacked": "Unpacked",
    }
    paths = {
        name: f"{__name__}:{kept}" for name, kept in {**here, "stranger": "stranger", "nothing": "NOTHING"}.items()
    }
    paths |= {"absent": "an_absent_module:Add", "abstract": "omni_ar.processors:LogitsProcessor"}
    return [LogitsProcessorEntry(name=name, processor=path) for name, path in paths.items()]


@pytest.fixture
def registry() -> ProcessorRegistry:
    plugins = plugins_of("ar", "local", "text", mine=__name__)
    return ProcessorRegistry(plugins.processors.entries, vocab_size=10)


BROKEN = {
    "absent": "importing an_absent_module failed",
    "unnamed": "has no 'Sub'",
    "fails": "OSError: no such table",
    "stranger": "gives a int, neither a LogitsProcessor nor a HistoryProcessor",
    "nothing": "cannot be called",
    "unknowable": "KeyError: 'width'",
    "widthless": "has the width None .*; give the number of its parameters",
    "abstract": "TypeError",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_processor_fails_only_its_requests(registry: ProcessorRegistry, name: str):
    with pytest.raises(PluginError, match=f"logits processor '{name}' could not be loaded: .*{BROKEN[name]}"):
        registry.check({name: {}}, "sampling.text.processors")
    registry.check({"add": {"by": 1.0}, "count": {}}, "sampling.text.processors")
    registry.check(None, "sampling.text.processors")


def test_device_processors_are_in_the_order_of_their_names(registry: ProcessorRegistry):
    assert [processor.name for processor in registry.on_device] == ["add", "unpacked", "zoom"]
    assert list(registry.params({"zoom": {"by": 2.0}, "count": {}, "add": {"by": 1.0}})) == ["add", "zoom"]
    assert registry.params({"zoom": {"by": 2.0}}) == {"zoom": (2.0,)}
    assert registry.params({}) == registry.params(None) == {}


def test_each_request_has_a_guide_of_its_own(registry: ProcessorRegistry):
    asked: Mapping[str, Mapping[str, object]] = {"count": {"a": 1}, "add": {"by": 1.0}}
    (first,), (second,) = registry.host_processors(asked), registry.host_processors(asked)
    first.push(3)
    assert (vars(first)["tokens"], vars(second)["tokens"]) == ([3], [])
    assert registry.host_processors({"add": {"by": 1.0}}) == registry.host_processors(None) == ()


RETURNS = {
    "forgetful": r"processors.forgetful.open: gave None \(HERE\); return an .*HostLogitsProcessor",
    "classy": r"processors.classy.open: gave the class Count \(HERE\); return an object of it",
    "unpacked": r"processors.unpacked.pack: gave None \(HERE\); return a list of numbers",
}


@pytest.mark.parametrize("name", RETURNS)
def test_a_processor_that_returns_something_else_is_blamed(registry: ProcessorRegistry, name: str):
    with pytest.raises(PluginError, match=RETURNS[name].replace("HERE", rf"{__file__}:\d+")):
        registry.check({name: {}}, "f")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (lambda logits_RV: None, "gave None, not a tensor [2, 5]: return new logits"),
        (lambda logits_RV: logits_RV[:, :1], "gave torch.float32 [2, 1], not torch.float32 [2, 5]"),
        (lambda logits_RV: logits_RV[:1], "gave torch.float32 [1, 5], not torch.float32 [2, 5]"),
        (lambda logits_RV: logits_RV.double(), "gave torch.float64 [2, 5], not torch.float32 [2, 5]"),
        (lambda logits_RV: logits_RV > 0, "gave torch.bool [2, 5], not torch.float32 [2, 5]"),
        (lambda logits_RV: logits_RV.to("meta"), "gave logits on meta, not on cpu: make them on the device of"),
    ],
    ids=["nothing", "one column", "one row", "another dtype", "a mask", "another device"],
)
def test_logits_of_another_shape_dtype_or_device_are_its_fault(given, problem):
    """`torch.where` would repeat or convert them silently, or blame the sampler."""

    class Given(Add):
        def apply(self, logits_RV, rows):
            return given(logits_RV)

    empty = torch.empty(0)
    rows = ProcessedRows(empty, empty, empty, empty, empty)
    with pytest.raises(ReturnedError) as caught:
        NamedProcessor("odd", Given(), 1).apply(torch.zeros(2, 5), rows)
    assert str(caught.value).startswith(f"Given.apply of logits processor 'odd', {problem}")
    assert f"({__file__}:" in fault_of(caught.value)


REFUSED: dict[str, tuple[dict[str, dict[str, object]], str]] = {
    "an unknown name": (
        {"ad": {}},
        "f.ad: is not a logits processor; known are add, classy, count, forgetful, unpacked, zoom; see `omni plugins`",
    ),
    "a long name": (
        {"x" * 10_000: {}},
        f"f.{'x' * 197}...: is not a logits processor; known are add, classy, count, forgetful, unpacked, zoom; see `omni plugins`",
    ),
    "its own complaint": ({"add": {"by": 0}}, "f.add.by: is 0; add something"),
    "a missing argument": ({"add": {}}, "f.add: KeyError: 'by' ("),
    "an argument of a wrong type": (
        {"add": {"by": "x"}},
        f"f.add: ValueError: could not convert string to float: 'x' ({__file__}:",
    ),
    "an invalid one": ({"count": {"a": "x"}}, "f.count: Expected `int`, got `str` - at `$[...]`; give the arguments"),
    "no number": ({"add": {"by": float("nan")}}, f"f.add: packs (nan,): not finite numbers, 1 of them ({__file__}:"),
    "too many numbers": (
        {"add": {"by": [1.0, 2.0]}},
        f"f.add: packs (1.0, 2.0): not finite numbers, 1 of them ({__file__}:",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_invalid_processor_parameters_are_named(registry: ProcessorRegistry, what: str):
    asked, problem = REFUSED[what]
    with pytest.raises(InputError) as caught:
        registry.check(asked, "f")
    assert problem in str(caught.value)


def test_a_stage_s_own_must_be_right_at_the_start(registry: ProcessorRegistry):
    registry.check_defaults({"add": {"by": 1.0}}, "text.sampling.processors")
    with pytest.raises(ConfigError, match=r"^text.sampling.processors.add.by: is 0"):
        registry.check_defaults({"add": {"by": 0}}, "text.sampling.processors")
    with pytest.raises(PluginError, match="an_absent_module"):
        registry.check_defaults({"absent": {}}, "text.sampling.processors")
