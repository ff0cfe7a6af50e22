"""The faults: for a node of a syntax tree, the nodes that replace it."""

import ast
from collections.abc import Iterator

COMPARED: dict[type[ast.cmpop], list[type[ast.cmpop]]] = {
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any", "popleft": "pop"}


def replacements(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that may take the place of `node`, each of them one fault."""
    if isinstance(node, ast.expr):
        yield from _expressions(node)
    elif isinstance(node, ast.stmt):
        yield from _statements(node)
    elif isinstance(node, ast.comprehension):
        yield from (_filter(node, at, forced) for at in range(len(node.ifs)) for forced in (True, False))


def _expressions(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(ops=[op]):
            for other in COMPARED[type(op)]:
                yield ast.Compare(node.left, [other()], node.comparators)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for at in range(len(values)):
                rest = values[:at] + values[at + 1 :]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand) if not isinstance(operand, ast.Constant):
            yield operand
        case ast.BinOp(left, op, right) if type(op) in COMPUTED:
            yield ast.BinOp(left, COMPUTED[type(op)](), right)
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value)):
            yield ast.Constant(value + 1)
            yield from [ast.Constant(value - 1)] if value else []
        case ast.Constant(float(value)):
            yield ast.Constant(value * 2 if value else 1.0)
        case ast.IfExp(test, then, other):
            yield from (ast.IfExp(forced, then, other) for forced in _forced(test))
        case ast.Slice(lower, upper, None):
            yield from [ast.Slice(None, upper)] if lower else []
            yield from [ast.Slice(lower, None)] if upper else []
        case ast.Call():
            yield from _calls(node)


def _calls(node: ast.Call) -> Iterator[ast.expr]:
    args, keywords = node.args, node.keywords
    for at in range(len(args) - 1):
        if _alike(args[at], args[at + 1]):
            yield ast.Call(node.func, [*args[:at], args[at + 1], args[at], *args[at + 2 :]], keywords)
    for at, keyword in enumerate(keywords):
        if keyword.arg not in (None, "strict") and not _makes(node.func):  # strict: an assertion
            yield ast.Call(node.func, args, keywords[:at] + keywords[at + 1 :])
    match node.func:
        case ast.Name(name) if name in OPPOSITES:
            yield ast.Call(ast.Name(OPPOSITES[name], ast.Load()), args, keywords)
        case ast.Attribute(value, name) if name in OPPOSITES:
            yield ast.Call(ast.Attribute(value, OPPOSITES[name], ast.Load()), args, keywords)


def _alike(one: ast.expr, other: ast.expr) -> bool:
    """Whether two arguments may be of the same kind, so that their order is not wrong at first sight."""
    match one, other:
        case ast.Name(name), ast.Name(another):
            return "_" in name and name.rpartition("_")[2] == another.rpartition("_")[2]
        case (ast.BinOp(), ast.BinOp()) | (ast.Subscript(), ast.Subscript()):
            return True
    return False


def _makes(function: ast.expr) -> bool:
    """Whether a call makes an object: nearly all of its arguments have no default."""
    name = function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
    return name.lstrip("_")[:1].isupper() or name == "cls"


def _statements(node: ast.stmt) -> Iterator[ast.stmt]:
    match node:
        case ast.If(test, body, orelse):
            yield from (ast.If(forced, body, orelse) for forced in _forced(test))
        case ast.While(test, body, orelse):
            yield ast.While(_never(test), body, orelse)
        case ast.With(items, body) if not any(item.optional_vars for item in items):
            yield ast.If(_always(ast.Constant(True)), body, [])
        case ast.AugAssign(target, op, value):
            if type(op) in COMPUTED:
                yield ast.AugAssign(target, COMPUTED[type(op)](), value)
            yield _dropped(node)
        case ast.Assign(targets) if not any(isinstance(target, ast.Name | ast.Tuple) for target in targets):
            yield _dropped(node)
        case ast.Return(ast.expr() as value) if not (
            isinstance(value, ast.Constant) and value.value in (None, False, True)
        ):
            yield ast.Return(ast.Constant(None))
        case ast.Return(None) | ast.Expr(ast.Call()) | ast.Raise() | ast.Delete() | ast.Continue() | ast.Break():
            yield _dropped(node)


def _forced(test: ast.expr) -> Iterator[ast.expr]:
    yield _always(test)
    yield _never(test)


def _always(test: ast.expr) -> ast.expr:
    return ast.BoolOp(ast.Or(), [test, ast.Constant(True)])


def _never(test: ast.expr) -> ast.expr:
    return ast.BoolOp(ast.And(), [test, ast.Constant(False)])


def _dropped(node: ast.stmt) -> ast.stmt:
    """`node` where it never runs: its names stay, so a function has the free variables that it had."""
    return ast.If(ast.Constant(False), [node], [])


def _filter(node: ast.comprehension, at: int, forced: bool) -> ast.comprehension:
    test = _always(node.ifs[at]) if forced else _never(node.ifs[at])
    return ast.comprehension(node.target, node.iter, [*node.ifs[:at], test, *node.ifs[at + 1 :]], node.is_async)
