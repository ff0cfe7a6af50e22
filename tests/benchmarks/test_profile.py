"""What `decode.py --profile` makes of the spans of kernels."""

import sys
from pathlib import Path

import pytest


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    before = set(sys.modules)
    from bench import profile

    yield profile
    for name in set(sys.modules) - before:
        if name.split(".")[0] == "bench":
            del sys.modules[name]


def test_overlapping_kernels_add_the_time_that_they_end_later(profile):
    spans = [
        profile.KernelSpan(0, 100, "product"),
        profile.KernelSpan(60, 130, "norm"),  # began while the product ran
        profile.KernelSpan(150, 200, "product"),  # 20 after its end
        profile.KernelSpan(110, 190, "copy"),  # beside it, on another stream
    ]
    added = profile.added_by_launch(reversed(spans))
    assert added == {
        ("norm", "product"): [profile.Added(30, 0)],
        ("copy", "norm"): [profile.Added(60, 0)],
        ("product", "copy"): [profile.Added(10, 0)],
    }
    assert sum(one.longer for of in added.values() for one in of) == 200 - 100


def test_a_late_launch_counts_as_waiting(profile):
    added = profile.added_by_launch(
        [profile.KernelSpan(0, 10, "a"), profile.KernelSpan(35, 40, "b"), profile.KernelSpan(38, 50, "a")]
    )
    assert added == {("b", "a"): [profile.Added(30, 25)], ("a", "b"): [profile.Added(10, 0)]}


def test_without_kernels_nothing_is_added(profile):
    assert profile.added_by_launch([]) == {}
