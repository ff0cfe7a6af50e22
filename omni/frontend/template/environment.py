"""The jinja2 environment of chat templates: as in transformers, with every loop, call and text counted."""

import json
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from types import BuiltinMethodType
from typing import Any, cast

from jinja2 import Environment, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from omni.frontend.template.effort import (
    check_call,
    check_length,
    check_numbers,
    check_operator,
    check_pattern,
    check_split,
    make,
    tick,
)

_JOIN, _COUNT = "omni join", "omni count"
"""Filters with names that no template can use."""
_LENGTHENING = {"center", "indent", "join", "replace", "tojson", "urlize", "wordwrap", "xmlattr"}
"""Filters that lengthen their input; methods below."""
_SLOW = {"striptags", "title", "urlize", "wordcount", "wordwrap", "xmlattr"}
"""Filters that take long for a long input, so its length is checked first."""
_SPLITTING_METHODS = {"rsplit", "split", "splitlines"}
_LENGTHENING_METHODS = {"center", "expandtabs", "join", "ljust", "replace", "rjust", "to_bytes", "translate", "zfill"}


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Bounds compilation and rendering, within `limited`. One for each template; threads may share it."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        # Not optimized: the optimizer evaluates constants, outside of the bounds.
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], optimized=False)
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now, "namespace": _Namespace}
        # It writes unbounded text, and no chat template needs it.
        del self.globals["lipsum"]
        self.filters["tojson"] = _to_json
        filters, tests = (cast(dict[str, Callable[..., Any]], table) for table in (self.filters, self.tests))
        self.filters = {name: _counted(function, name) for name, function in filters.items()}
        self.tests = {name: _counted(function, "") for name, function in tests.items()}
        self.filters |= {_JOIN: _join, _COUNT: _count}

    @property
    def ticked(self) -> None:
        """Read at the beginning of each iteration. A property: compiled templates read it without the cost of a call."""
        tick()

    def call(self, context: Context, function: Any, *arguments: Any, **named: Any) -> Any:
        tick()
        if isinstance(function, BuiltinMethodType) and function.__name__ in _LENGTHENING_METHODS:
            check_call([function.__self__, *arguments], named)
        if isinstance(function, BuiltinMethodType) and function.__name__ in _SPLITTING_METHODS:
            separator = named.get("sep", arguments[0] if arguments else None)
            check_split(function.__self__, "\n" if function.__name__ == "splitlines" else separator)
        made = super().call(context, function, *arguments, **named)
        make(made)
        return made

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        tick()
        check_operator(operator, left, right)
        made = super().call_binop(context, operator, left, right)
        make(made)
        return made

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        form: Callable[..., str] = wrapped

        def formatted(*arguments: Any, **named: Any) -> str:
            check_pattern(value.__self__)
            check_numbers([*arguments, *named.values()])
            return form(*arguments, **named)

        return formatted

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Instrument().visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree


class _Instrument(NodeTransformer):
    """Adds counting to loops, texts and collections."""

    def _ticking(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        ticked = nodes.EnvironmentAttribute("ticked", lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(ticked, lineno=node.lineno))
        return node

    visit_For = visit_Macro = visit_CallBlock = _ticking

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [each if isinstance(each, nodes.TemplateData) else _filter(each, _COUNT) for each in node.nodes]
        return node

    def _counting(self, node: nodes.List | nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, _COUNT)

    visit_List = visit_Dict = _counting

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, _COUNT) if node.ctx == "load" else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), _JOIN)


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Generation(Extension):
    """`{% generation %}`, which marks text for training. It is rendered as if it were not marked."""

    tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        text: str = caller()
        return text


class _Namespace(Namespace):
    """Printed without its values, which may refer to one another."""

    def __repr__(self) -> str:
        return "<Namespace>"


def _counted(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """name: of a filter."""

    @wraps(function)
    def counted(*arguments: Any, **named: Any) -> Any:
        tick()
        # Some filters get a context or an environment first.
        values = [each for each in arguments if not isinstance(each, Context | Environment | nodes.EvalContext)]
        if name in _SLOW and values:
            check_length(values[0])
        if name in _LENGTHENING:
            check_call(values, named)
        elif name == "format":
            check_operator("%", str(values[0]), (*values[1:], *named.values()))
        else:
            check_numbers([*values[1:], *named.values()])
        made = function(*arguments, **named)
        make(made)
        return made

    return counted


def _count(value: Any) -> Any:
    make(value)
    return value


def _join(values: list[Any]) -> str:
    for value in values:
        make(value)
    return str_join(values)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    if not isinstance(pattern, str):
        raise SecurityError("formats a time with a pattern that is not text")
    check_pattern(pattern)
    return datetime.now().strftime(pattern)
