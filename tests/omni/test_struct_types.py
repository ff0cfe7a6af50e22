"""msgspec describes struct types one at a time: omni/utils/struct_types.py."""

import ast
from collections.abc import Iterator

from tests.support.entry_points import REPOSITORY

EXCEPTED = {
    "omni/api/arguments.py": "its type is described when its module is imported",
    "omni/cli/serve.py": "no other thread runs yet",
    "omni/serve/audio/encoder_process.py": "the only thread that decodes",
    "omni/timeline/read.py": "commands read files in their only thread",
}


def test_a_type_is_described_under_the_lock():
    texts = {path: path.read_text() for path in sorted((REPOSITORY / "omni").rglob("*.py"))}
    # A file without these names has no such call, and to parse it takes long.
    decoding = [path for path, text in texts.items() if any(name in text for name in _DECODES | _TYPED)]
    assert len(decoding) > len(EXCEPTED)
    found = {path.relative_to(REPOSITORY).as_posix(): [*_unlocked(ast.parse(texts[path]))] for path in decoding}
    named = {name: lines for name, lines in found.items() if lines}
    assert named.keys() == EXCEPTED.keys(), f"msgspec meets a type outside of `with STRUCT_TYPES`: {named}"


def test_calls_that_describe_a_type_are_found():
    code = """
def f(decode=msgspec.json.decode):
    msgspec.convert(value, kind)
    msgspec.json.decode(data, type=kind)
    msgspec.msgpack.Decoder(kind)
    msgspec.json.decode(data)
    with STRUCT_TYPES:
        msgspec.convert(value, kind)
        later = lambda: msgspec.convert(value, kind)
made = msgspec.convert(value, kind)
"""
    assert [*_unlocked(ast.parse(code))] == [2, 3, 4, 5, 9]


def _unlocked(node: ast.AST, *, inside: bool = False, locked: bool = False) -> Iterator[int]:
    """Lines in functions that use a type without the lock, or take the function that does. inside: a function. An import needs no
    lock: others find its types when it has ended."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        inside, locked = True, False
    if isinstance(node, ast.With) and any(ast.unparse(item.context_expr) == "STRUCT_TYPES" for item in node.items):
        locked = True
    if inside and not locked and _describes(node):
        assert isinstance(node, ast.expr)
        yield node.lineno
    # Of a call without a type, the function alone is harmless.
    untyped = isinstance(node, ast.Call) and not _typed(node) and ast.unparse(node.func) in _DECODES
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.Call) and child is node.func and (untyped or _describes(node))):
            yield from _unlocked(child, inside=inside, locked=locked)


_DECODES = {"msgspec.json.decode", "msgspec.msgpack.decode"}
_TYPED = {"msgspec.convert", "msgspec.json.Decoder", "msgspec.msgpack.Decoder"}


def _typed(call: ast.Call) -> bool:
    return any(keyword.arg == "type" for keyword in call.keywords)


def _describes(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        return name in _TYPED or (name in _DECODES and _typed(node))
    return isinstance(node, ast.Attribute) and ast.unparse(node) in _DECODES
