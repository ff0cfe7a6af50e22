"""Triton's interpreter without work that it repeats, or whose result it drops. Kernels compute the same.

At each launch, and at each call of a device function, it looks at all members of triton.language for the few hundred that it
replaces: most of the time of a small kernel. Which they are does not change. It computes of each sum, difference and product of
integers whether it overflows, and reports that with `debug` only. It makes a type and a shape for each value, mostly equal ones.
"""

import inspect
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

_INTERPRETER = "triton.runtime.interpreter"


def quicken() -> None:
    """Without effect if the interpreter is not loaded."""
    interpreter: Any = sys.modules.get(_INTERPRETER)
    if interpreter is None:
        return
    _remember_builtins(interpreter)
    _remember_types(interpreter)
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=builder.options.debug)


def _remember_builtins(interpreter: Any) -> None:
    """From now on, the interpreter looks at a module's or a class's members once, and replaces them once in a launch: not again for
    its device functions."""
    language, patch_lang, scope_class = interpreter.tl, interpreter._patch_lang, interpreter._LangPatchScope
    names: dict[Any, list[str]] = {}
    seen: dict[Any, frozenset[str]] = {}
    replaced: set[str] = set()

    def getmembers(package: Any) -> list[tuple[str, Any]]:
        if package not in names:
            members = inspect.getmembers(package)
            names[package] = [name for name, member in members if language.core.is_builtin(member)]
        return [(name, getattr(package, name)) for name in names[package]]

    class Scope(scope_class):  # type: ignore[misc, valid-type]
        def restore(self) -> None:
            super().restore()
            replaced.clear()

    def patch(function: Any) -> Any:
        if function not in seen:
            modules = [each for each in function.__globals__.values() if inspect.ismodule(each)]
            seen[function] = frozenset(each.__name__ for each in modules if each in (language, language.core))
        if seen[function] and seen[function] <= replaced:
            return Scope()
        scope = patch_lang(function)
        replaced.update(seen[function])
        return scope

    quick: Any = ModuleType("inspect")
    vars(quick).update(vars(inspect))
    quick.getmembers = getmembers
    interpreter.inspect, interpreter._LangPatchScope, interpreter._patch_lang = quick, Scope, patch


def _remember_types(interpreter: Any) -> None:
    """From now on, blocks of one size share their shape, and tensors of one type theirs. Nothing changes them."""
    core, semantic = interpreter.tl.core, interpreter.TritonSemantic
    to_numpy, make_block, make_tensor = interpreter._get_np_dtype, core.block_type.__init__, core.tensor.__init__
    broadcast_both = semantic.broadcast_impl_value
    dtypes: dict[str, Any] = {}
    shapes: dict[tuple[int, ...], Any] = {}
    blocks: dict[tuple[object, ...], dict[str, Any]] = {}
    tensors: dict[str, tuple[Any, ...]] = {}

    def get_np_dtype(dtype: Any) -> Any:
        if type(dtype) is not core.dtype:
            return to_numpy(dtype)
        if dtype.name not in dtypes:
            dtypes[dtype.name] = to_numpy(dtype)
        return dtypes[dtype.name]

    def new_block(self: Any, element_ty: Any, shape: Sequence[Any]) -> None:
        named = type(element_ty) is core.dtype  # the name of a pointer does not say all
        key = (element_ty.name, *shape) if named else None
        if key in blocks:
            vars(self).update(blocks[key])
            return
        make_block(self, element_ty, shape)
        self.shape = shapes.setdefault(tuple(self.shape), self.shape)
        if key is not None:
            blocks[key] = dict(vars(self))

    def new_tensor(self: Any, handle: Any, type: Any) -> None:
        if type.__class__ not in (core.dtype, core.block_type):
            make_tensor(self, handle, type)
            return
        if type.name not in tensors:
            make_tensor(self, handle, type)
            tensors[type.name] = self.shape, self.numel
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = tensors[type.name]

    def broadcast(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        both = lhs.type, rhs.type
        if all(type(each) is core.block_type for each in both) and both[0].shape is both[1].shape:
            return lhs, rhs
        made: tuple[Any, Any] = broadcast_both(self, lhs, rhs)
        return made

    interpreter._get_np_dtype = get_np_dtype
    core.block_type.__init__, core.tensor.__init__ = new_block, new_tensor
    semantic.broadcast_impl_value = broadcast
