"""All code that may wait for the device is listed, with its reason, and the listed code exists."""

import ast
from functools import cache
from pathlib import Path

import pytest

from omni.device import SyncPoint
from tests.support.entry_points import REPOSITORY

ROOTS = ("omni", "stages", "connectors", "plugins", "examples/plugin")
LIST = REPOSITORY / "omni" / "device" / "sync_points.py"


@cache
def sources() -> list[tuple[Path, ast.Module]]:
    """Those with `may_sync`, `synchronize` or `SyncPoint`: other files have nothing to check, and to parse them takes long."""
    paths = (path for root in ROOTS for path in sorted((REPOSITORY / root).rglob("*.py")))
    texts = {path: path.read_text() for path in paths}
    return [(path, ast.parse(text)) for path, text in texts.items() if "sync" in text.lower()]


@cache
def uses() -> list[tuple[Path, ast.Call]]:
    """Every call of `may_sync`."""
    return [
        (path, node)
        for path, tree in sources()
        if "may_sync" in path.read_text()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and "may_sync" in ast.dump(node.func)
    ]


def point_of(call: ast.Call) -> str | None:
    """The member that a call names, None if it names none."""
    match call:
        case ast.Call(args=[ast.Attribute(value=ast.Name(id="SyncPoint"), attr=name)], keywords=[]):
            return name
        case _:
            return None


@pytest.mark.parametrize("point", SyncPoint)
def test_every_point_has_a_reason_and_is_used(point: SyncPoint):
    assert len(point.value.split()) >= 6
    assert point.name in {point_of(call) for _, call in uses()}


def test_no_two_points_have_one_reason():
    # Members of equal value would be one member under two names.
    assert len(SyncPoint.__members__) == len(list(SyncPoint))


def test_may_sync_is_called_with_a_point_and_in_a_with_statement():
    for path, call in uses():
        assert point_of(call) in SyncPoint.__members__, f"{path}:{call.lineno} names no SyncPoint"
    entered = {
        (path, item.context_expr.lineno)
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.With)
        for item in node.items
    }
    assert {(path, call.lineno) for path, call in uses()} <= entered


def test_the_host_waits_for_a_device_inside_may_sync_only():
    """`synchronize` is called inside `may_sync`, or by a device on its parts."""
    for path, tree in sources():
        if path.is_relative_to(REPOSITORY / "omni" / "testing"):
            continue
        allowed = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.With) and any("may_sync" in ast.dump(item) for item in node.items)
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Attribute(ast.Attribute(ast.Name("torch"), "cuda"), name)):
                    assert name != "synchronize" or path.name == "cuda.py"
                case ast.Call(func=ast.Attribute(attr="synchronize")):
                    assert id(node) in allowed, f"{path}:{node.lineno} waits for the device outside of may_sync"


def test_the_list_is_in_one_place():
    for path, tree in sources():
        classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        assert ("SyncPoint" in classes) == (path == LIST)
