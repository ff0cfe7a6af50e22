"""Objects that exist when a model is opened, and garbage collection."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni.api.owner import FROZEN_OBJECTS, FrozenObjects
from tests.support.echo_omni import opened


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    before = gc.get_freeze_count()
    gc.unfreeze()
    yield
    gc.unfreeze()
    if before > 10_000:
        gc.freeze()


def collected(ref: "weakref.ref[Cycle]") -> bool:
    gc.collect()
    return ref() is None


def test_objects_before_a_model_are_excluded_while_it_is_open(model: Path) -> None:
    cycle = Cycle()
    ref = weakref.ref(cycle)
    with opened(model):
        assert gc.get_freeze_count() > 10_000
        del cycle
        assert not collected(ref)
        later = weakref.ref(Cycle())
        assert collected(later)
    assert gc.get_freeze_count() < 10_000
    assert collected(ref)


def test_a_model_that_is_closed_beside_another_is_collected(model: Path) -> None:
    with opened(model):
        cycle = Cycle()
        ref = weakref.ref(cycle)
        with opened(model):
            del cycle
            assert not collected(ref)
        assert gc.get_freeze_count() < 10_000
        assert collected(ref)
        assert gc.get_freeze_count() > 10_000, "for the model that is open"
    assert gc.get_freeze_count() < 10_000
    assert FROZEN_OBJECTS._after_collection not in gc.callbacks


def test_models_that_are_closed_before_a_collection_leave_nothing_excluded(model: Path) -> None:
    with opened(model), opened(model):
        pass
    gc.collect()
    assert gc.get_freeze_count() < 10_000
    assert FROZEN_OBJECTS._after_collection not in gc.callbacks


def test_immortal_objects_of_python_are_no_choice_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 counts them from its start."""
    frozen = FrozenObjects()
    with monkeypatch.context() as patched:
        patched.setattr(gc, "get_freeze_count", lambda: 375)
        frozen.freeze()
    assert gc.get_freeze_count() > 10_000
    frozen.unfreeze()
    assert gc.get_freeze_count() < 10_000


def test_a_program_that_excludes_objects_itself_is_left_alone(model: Path) -> None:
    gc.freeze()
    own, cycle = gc.get_freeze_count(), Cycle()
    ref = weakref.ref(cycle)
    with opened(model):
        del cycle
        assert collected(ref)
    assert 10_000 < gc.get_freeze_count() <= own


def test_a_setting_leaves_all_objects_in(model: Path) -> None:
    with opened(model, **{"frontend.gc_freeze": False}):
        assert gc.get_freeze_count() < 10_000
    assert gc.get_freeze_count() < 10_000
