"""Any value of a generate argument is accepted, or refused with its field."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni import Omni, SamplingParams
from omni.api.arguments import CheckedArguments, GenerateArguments, check_arguments
from omni.checkpoint import Checkpoint
from omni.errors import QUOTED, InputError
from omni.pipeline import Pipeline
from tests.support.echo_family import echo_model, echo_plugins, eventually, pipeline

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return pipeline(Checkpoint(echo_model(tmp_path_factory.mktemp("model"))))


class Evil:
    """Raises whatever is done with it."""

    def __repr__(self) -> str:
        raise ValueError("no")

    def __eq__(self, other: object) -> bool:
        raise ValueError("no")

    __str__ = __repr__
    __hash__ = object.__hash__


class EvilMapping(Mapping[Any, Any]):
    def __getitem__(self, key: object) -> Any:
        raise RuntimeError(Evil())

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError(Evil())

    def __len__(self) -> int:
        return 1


class Endless(Sequence[str]):
    def __getitem__(self, index: Any) -> Any:
        return "text"

    def __len__(self) -> int:
        return 10**9


def wrong() -> dict[str, tuple[str, object, str, str]]:
    """name: argument, value, field, words."""
    greedy = SamplingParams(temperature=0)
    return {
        "a number of modalities": ("modalities", 3, "modalities", "are a int; give a tuple such as"),
        "a generator": ("modalities", (m for m in ["text"]), "modalities", "are a generator"),
        "an array": ("modalities", np.array(["text", "audio"]), "modalities", "are a ndarray"),
        "arrays in it": ("modalities", [np.array(["text", "audio"])], "modalities", "does not give array("),
        "a dict": ("modalities", {"text": 1}, "modalities", "are a dict"),
        "a text": ("modalities", "text", "modalities", "is a string; give a tuple such as"),
        "an empty set": ("modalities", set(), "modalities", "are empty"),
        "a surrogate": ("modalities", ["a\ud800"], "modalities", "does not give"),
        "a long name": ("modalities", ["x" * 10**6], "modalities", "does not give"),
        "evil": ("modalities", [Evil()], "modalities", "does not give"),
        "a voice with a surrogate": ("voice", "a\udfff", "voice", "is not valid Unicode"),
        "bytes as a voice": ("voice", b"low", "voice", "is a bytes"),
        "an array as a voice": ("voice", np.array(["a", "b"]), "voice", "is a ndarray"),
        "a numpy int as a priority": ("priority", np.int64(3), "priority", "is a int64; give an int"),
        "a numpy bool as a priority": ("priority", np.True_, "priority", "is a bool"),
        "an array as a priority": ("priority", np.array([1, 2]), "priority", "is a ndarray"),
        "a huge priority": ("priority", 10**10_000, "priority", "is out of range"),
        "no priority": ("priority", None, "priority", "is a NoneType"),
        "a text as a priority": ("priority", "high", "priority", "is a str; give an int"),
        "a float as a priority": ("priority", 0.5, "priority", "is a float; give an int"),
        "no answer": ("n", 0, "n", "0 is out of range; use 1 to 64"),
        "too many answers": ("n", 65, "n", "use 1 to 64"),
        "a text as n": ("n", "3", "n", "str"),
        "a numpy int as n": ("n", np.int32(2), "n", "is a int32"),
        "a numpy bool as n": ("n", np.True_, "n", "is a bool"),
        "a huge n": ("n", 10**10_000, "n", "is out of range; use 1 to 64"),
        "a long salt": ("cache_salt", "x" * 4097, "cache_salt", "is 4,097 characters long; use at most 4,096"),
        "a long voice": ("voice", "x" * 10**6, "voice", "is 1,000,000 characters long; use at most 4,096"),
        "an int as a salt": ("cache_salt", 7, "cache_salt", "is a int; give a string"),
        "a salt with a surrogate": ("cache_salt", "\ud800", "cache_salt", "is not valid Unicode"),
        "sampling of pairs": ("sampling", [("writer", greedy)], "sampling", "is a list"),
        "sampling that cannot be read": ("sampling", EvilMapping(), "sampling", "cannot be read: RuntimeError"),
        "a number as a stage": ("sampling", {3: greedy}, "sampling", "has the key 3, a int"),
        "a tuple as a stage": ("sampling", {("writer",): greedy}, "sampling", "has the key ('writer',), a tuple"),
        "evil as a stage": ("sampling", {Evil(): greedy}, "sampling", "a Evil"),
        "a long stage": ("sampling", {"x" * 10**6: greedy}, "sampling." + "x" * 197 + "...", "there is no stage"),
        "a surrogate as a stage": ("sampling", {"\ud800": greedy}, "sampling.\\ud800", "there is no stage"),
        "no parameters": ("sampling", {"writer": None}, "sampling.writer", "is a NoneType; give SamplingParams"),
        "an array of parameters": ("sampling", {"writer": np.zeros(3)}, "sampling.writer", "is a ndarray"),
        "a huge value": ("sampling", SamplingParams(max_tokens=10**10_000), "sampling", ""),
        "a generator of ids": (
            "sampling",
            SamplingParams(stop_token_ids=(i for i in range(3))),  # type: ignore[arg-type]
            "sampling.stop_token_ids",
            "Expected `array",
        ),
        "a set that is not an option": ("sampling", SamplingParams(logit_bias=Evil()), "sampling", ""),  # type: ignore[arg-type]
    }


@pytest.mark.parametrize("case", wrong())
def test_an_invalid_argument_is_refused_by_field(echo: Pipeline, case: str) -> None:
    name, value, field, words = wrong()[case]
    with pytest.raises(InputError) as raised:
        check_arguments(echo, cast(GenerateArguments, {name: value}))
    assert raised.value.field == field or (not words and raised.value.field.startswith(field))
    assert words in str(raised.value)
    assert len(str(raised.value)) < 4 * QUOTED
    str(raised.value).encode()


def test_a_dict_of_parameters_is_refused_with_the_right_form(echo: Pipeline) -> None:
    """What everybody writes first."""

    def said(sampling: Any) -> str:
        with pytest.raises(InputError) as raised:
            check_arguments(echo, {"sampling": sampling})
        return str(raised.value)

    assert said({"temperature": 0}) == (
        "sampling.temperature: is a parameter, but a stage's name is expected; give SamplingParams(temperature=0), "
        "or a dict of stage to SamplingParams, as {'writer': SamplingParams(temperature=0)}"
    )
    assert "give SamplingParams(temperature=0.5, top_k=3), or" in said({"temperature": 0.5, "top_k": 3})
    assert said({"writer": {"temperature": 0}}) == "sampling.writer: is a dict; give SamplingParams(temperature=0)"
    assert len(said({"stop": "x" * 10**6})) < 5 * QUOTED


def test_valid_arguments_are_taken(echo: Pipeline) -> None:
    greedy = SamplingParams(temperature=0)
    arguments: GenerateArguments = {
        "modalities": {"text"},  # type: ignore[typeddict-item]
        "voice": None,
        "sampling": {"writer": greedy},
        "priority": -(2**63),
        "cache_salt": "salt",
        "n": 64,
    }
    fields = {"writer": "sampling.writer"}
    text = frozenset({"text"})
    expected = CheckedArguments(
        modalities=text,
        prepared=text,
        voice=None,
        sampling={"writer": greedy},
        fields=fields,
        priority=-(2**63),
        cache_salt="salt",
        n=64,
    )
    assert check_arguments(echo, arguments) == expected
    assert check_arguments(echo, {"modalities": ["audio", "text"], "voice": "low"}).modalities == {"text", "audio"}
    assert check_arguments(echo, {"modalities": (np.str_("text"),)}).modalities == {"text"}
    assert check_arguments(echo, {"modalities": Endless()}).modalities == {"text"}
    both = frozenset({"text", "audio"})
    assert check_arguments(echo, {}) == CheckedArguments(
        modalities=both, prepared=both, voice=None, sampling={}, fields={}
    )


def test_an_unknown_argument_is_a_type_error(echo: Pipeline) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'temperature'"):
        check_arguments(echo, cast(GenerateArguments, {"temperature": 0}))


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(), max_size=8),
    st.binary(max_size=4),
    st.sampled_from(["text", "audio", "writer", "low", "temperature", "stop", "\ud800", "x" * 1000]),
    st.builds(Evil),
    st.builds(EvilMapping),
    st.builds(lambda: np.arange(3)),
    st.builds(lambda: (x for x in "ab")),
    st.builds(np.float32, st.floats(width=32)),
    st.builds(lambda sign: sign * 10**5000, st.sampled_from([1, -1])),
    st.sampled_from([np.int8(1), np.True_, object, SamplingParams(), SamplingParams(top_p=2.0)]),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner),
        st.dictionaries(
            st.one_of(st.text(max_size=3), st.integers(), st.sampled_from(["writer", "top_k"])), inner, max_size=3
        ),
        st.fixed_dictionaries(
            {}, optional={"temperature": inner, "stop": inner, "logit_bias": inner, "seed": inner}
        ).map(lambda fields: SamplingParams(**fields)),
    ),
    max_leaves=6,
)


NAMES = tuple(GenerateArguments.__annotations__)
ONE_ODD = [st.fixed_dictionaries({name: VALUES}) for name in NAMES]
ALL_ODD = st.fixed_dictionaries(dict.fromkeys(NAMES, VALUES))


@settings(max_examples=100)
@given(arguments=st.one_of(*ONE_ODD, ALL_ODD))
def test_any_other_value_is_an_input_error(echo: Pipeline, arguments: Any) -> None:
    error = error_of(echo, arguments)
    if error is not None:
        assert error.field.partition(".")[0] in NAMES
        str(error).encode()


def error_of(echo: Pipeline, arguments: GenerateArguments) -> InputError | None:
    try:
        check_arguments(echo, arguments)
    except InputError as error:
        return error
    return None


def test_messages_of_types_of_the_users_own(tmp_path: Path) -> None:
    """They are raised with the outputs, as all mistakes in messages."""
    with Omni(echo_model(tmp_path), device="cpu", plugins=echo_plugins()) as omni:
        odd: list[Any] = [
            EvilMapping(),
            [EvilMapping()],
            [{"role": "user", "content": EvilMapping()}],
            [{Evil(): Evil()}],
            Evil(),
        ]
        for messages in odd:
            with pytest.raises(InputError) as raised:
                omni.generate(messages, stream=False)
            assert raised.value.field.startswith("messages")
        assert eventually(lambda: omni.idle)
