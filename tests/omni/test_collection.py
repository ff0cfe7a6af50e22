"""The garbage collector is paused where it could do harm, and runs again afterwards."""

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from omni.utils.collection import no_collection
from tests.support.entry_points import REPOSITORY
from tests.support.patience import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_collections_are_off_until_the_last_of_several_ends() -> None:
    first, second = no_collection(), no_collection()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_collections_come_back_after_an_error() -> None:
    with pytest.raises(ValueError, match="fault"), no_collection():
        raise ValueError("fault")
    assert gc.isenabled()


def test_a_program_without_collections_gets_none() -> None:
    gc.disable()
    with no_collection():
        pass
    assert not gc.isenabled()


@pytest.mark.parametrize("text", ["b'[' * 3000", "b'{\"a\":' * 3000", "'[' * 3000"])
@pytest.mark.parametrize("parse", ["body.decode_json", "body.check_surrogates"])
def test_json_that_is_nested_too_deeply_costs_no_finalizer(parse: str, text: str) -> None:
    """With these thresholds, the collector would run at each depth near the limit of the recursion."""
    program = f"""
import gc
from contextlib import suppress
from omni.serve import body

class Cycle:
    def __init__(self):
        self.own = self
    def __del__(self):
        finish()

def finish():
    count()

def count():
    finished.append(None)

finished, made = [], range(850, 1010)
for threshold in made:
    gc.set_threshold(700)
    gc.collect()
    gc.set_threshold(threshold)
    Cycle()
    with suppress(RecursionError):
        {parse}({text})
gc.collect()
print(len(made) - len(finished))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
    assert (done.stdout, done.stderr) == ("0\n", "")
