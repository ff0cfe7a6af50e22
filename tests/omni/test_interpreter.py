"""Programs that would start themselves if they started `sys.executable`."""

import sys

import pytest

from omni.utils import interpreter


@pytest.mark.parametrize(
    ("executable", "expected"),
    [
        ("/usr/bin/python3", True),
        ("/opt/venv/bin/python", True),
        ("/usr/bin/python3.13t", True),
        ("/usr/bin/pypy3.11", True),
        ("/usr/sbin/uwsgi", False),
        ("/opt/python3/bin/blender", False),
        ("", False),
        (None, False),
    ],
)
def test_only_an_interpreter_is_started(
    monkeypatch: pytest.MonkeyPatch, executable: str | None, expected: bool
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys, "executable", executable)
    assert interpreter._can_start() is expected


def test_a_frozen_program_is_no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert interpreter._can_start()
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert not interpreter._can_start()


def test_other_systems_start_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not interpreter._can_start()
