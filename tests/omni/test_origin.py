"""Which line an error blames."""

import ast
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from omni.errors import InputError, ReturnedError, StageError, as_omni_error, plugin_call
from omni.utils.origin import origin, with_origin
from omni_ar.adapters import FramesToCodes
from tests.omni.broken_plugins.installed import installed


def failing() -> None:
    raise ValueError("odd")


def raised(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("it did not raise")


def line_of(function: Callable[..., object], offset: int = 0) -> str:
    return f"{__file__}:{function.__code__.co_firstlineno + offset}"


def test_the_innermost_line_outside_of_omni_and_of_libraries() -> None:
    def plugin() -> None:
        json.loads("{")

    assert origin(raised(plugin)) == line_of(plugin, 1)


def test_omni_s_own_plugins_only_if_no_other_is_there() -> None:
    def others() -> None:
        FramesToCodes(None).push(None)  # type: ignore[arg-type]

    error = raised(others)
    assert origin(error) == line_of(others, 1)
    assert error.__traceback__ is not None
    assert error.__traceback__.tb_next is not None
    inner = error.with_traceback(error.__traceback__.tb_next.tb_next)
    assert origin(inner).startswith("plugin omni-stages, ") or "omni_ar/adapters.py:" in origin(inner)
    assert "omni_ar/adapters.py:" in origin(inner)
    assert origin(inner, others) == line_of(others)


class Named:
    def method(self) -> None: ...


@pytest.mark.parametrize("code", [failing, partial(failing), partial(partial(failing))])
def test_the_code_that_was_called_if_the_traceback_has_none(code: Callable[[], None]) -> None:
    assert origin(ValueError("never raised"), code) == line_of(failing)


def test_a_method_a_class_and_an_object() -> None:
    first = f"{__file__}:{Named.method.__code__.co_firstlineno - 1}"
    assert origin(code=Named().method) == line_of(Named.method)
    assert origin(code=Named) == origin(code=Named()) == first


def made_of_text() -> Callable[..., None]:
    """A function without a file and without a module, as a library makes it."""
    names: dict[str, Callable[..., None]] = {}
    exec("def made(self): ...", {}, names)
    return names["made"]


def test_the_origin_of_a_generated_method_is_its_class() -> None:
    class Generated:
        def written(self) -> None: ...

        made = made_of_text()

    assert origin(code=Generated().made) == line_of(Generated.written, -1)
    assert origin(code=made_of_text()) == ""


def test_a_function_that_wraps_itself_has_its_own_origin() -> None:
    def looped() -> None: ...

    looped.__wrapped__ = looped  # type: ignore[attr-defined]
    assert origin(code=looped) == line_of(looped)


def test_of_two_classes_with_one_name_the_right_line() -> None:
    class Named:
        value = 1

        def __call__(self) -> None: ...

    assert origin(code=Named) == line_of(Named.__call__, -3)
    assert origin(code=type("Made", (), {})) == ""


def test_a_class_is_found_without_parsing_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing in two threads at once raises SystemError in Python 3.11."""

    def parse(*_: object, **__: object) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr(ast, "parse", parse)
    assert origin(code=Named()) == f"{__file__}:{Named.method.__code__.co_firstlineno - 1}"


@pytest.mark.parametrize("code", [len, int, None, 7, InputError, "text"])
def test_code_without_a_line_outside_omni_has_no_origin(code: object) -> None:
    assert origin(code=code) == ""
    assert with_origin("a problem", code=code) == "a problem"


def test_an_installed_plugin_is_named_by_its_distribution(tmp_path: Path) -> None:
    with installed("plain_talk", {}, tmp_path):
        from plain_talk.pipeline import Letters

        error = raised(partial(Letters().push, "no ids"))  # type: ignore[arg-type]
        assert origin(error).startswith(f"plugin plain-talk-plugin, {tmp_path}/plain_talk/pipeline.py:")


def test_a_call_of_a_plugin_becomes_a_stage_s_error() -> None:
    with pytest.raises(StageError) as caught, plugin_call("a->b", "adapting", failing):
        failing()
    assert str(caught.value) == f"stage 'a->b' failed while adapting: ValueError: odd ({line_of(failing, 1)})"
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_exit_in_a_plugin_is_its_fault_and_an_interruption_is_not() -> None:
    words = "stage 'a->b' failed while adapting: SystemExit: 2"
    with pytest.raises(StageError, match=words), plugin_call("a->b", "adapting", failing):
        raise SystemExit(2)
    with pytest.raises(KeyboardInterrupt), plugin_call("a->b", "adapting", failing):
        raise KeyboardInterrupt


def test_an_interruption_where_no_ctrl_c_arrives_is_the_plugin_s_fault() -> None:
    def call() -> None:
        with plugin_call("a->b", "adapting", failing):
            raise KeyboardInterrupt

    with (
        ThreadPoolExecutor(1) as pool,
        pytest.raises(StageError, match="stage 'a->b' failed while adapting: KeyboardInterrupt"),
    ):
        pool.submit(call).result()


def test_an_error_of_omni_stays_as_it_is() -> None:
    error = InputError("voice", "is unknown", "use another")
    with pytest.raises(InputError) as caught, plugin_call("a->b", "adapting", failing):
        raise error
    assert caught.value is error


def test_a_wrong_result_blames_the_function_that_returned_it() -> None:
    error = raised(partial(_refuse, failing))
    assert (
        str(as_omni_error("s", "looking", error)) == f"stage 's' failed while looking: gave None ({line_of(failing)})"
    )


def _refuse(code: object) -> None:
    raise ReturnedError("gave None", code)
