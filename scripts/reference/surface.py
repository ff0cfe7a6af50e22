"""The snapshot of the public surface: a line for each name and member."""

import ast
from collections.abc import Iterator

from reference.sources import Name, definitions, find, listed, members, signature


def surface() -> str:
    """Raises KeyError for a public name that no module defines."""
    version, _ = definitions("omni.version")["__version__"]
    lines = [
        line
        for modules in listed().values()
        for module, names in modules.items()
        for name in names
        for line in lines_of(module, name)
    ]
    return "\n".join((ast.unparse(version), *lines)) + "\n"


def lines_of(module: str, name: str) -> Iterator[str]:
    found = find(module, name)
    yield f"{module}.{heading(found, name)}"
    if isinstance(found.node, ast.ClassDef):
        yield from (f"    {member.text}" for member in members(found))


def heading(found: Name, name: str) -> str:
    """A name with its signature, bases or value."""
    match found.node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return signature(found.node)
        case ast.ClassDef(bases=bases):
            return f"{name}({', '.join(ast.unparse(base) for base in bases)})" if bases else name
        case _:
            return ast.unparse(found.node)
