"""A variant of a Triton kernel, as another process can compile it."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 16
"""Bytes of the alignment of pointers, and the divisor of integers, that Triton compiles for."""
_WIDTHS = (2**63, 2**31)
"""Integers from the first on are unsigned, from the second on 64 bits wide; others have 32 bits."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """A tensor as an argument, as far as Triton specializes code for it."""

    dtype: torch.dtype
    aligned: bool

    def data_ptr(self) -> int:
        return 0 if self.aligned else self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A `TensorDescriptor` as an argument."""

    base: Pointer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block_shape: tuple[int, ...]
    padding: str

    def rebuilt(self) -> object:
        from triton.tools.tensor_descriptor import TensorDescriptor

        shape, strides, block = list(self.shape), list(self.strides), list(self.block_shape)
        return TensorDescriptor(self.base, shape, strides, block, padding=self.padding)


@dataclass(frozen=True, slots=True)
class Group:
    """A tuple as an argument. type: the path of its class, `"module:name"`: kernels read fields by name."""

    type: str
    items: tuple[object, ...]

    def rebuilt(self) -> object:
        items = [_rebuilt(item) for item in self.items]
        made: Callable[..., object] = _at(self.type)
        return tuple(items) if made is tuple else made(*items)


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a kernel. kernel: its path, `"module:name"`. names: all of them, in order. constants: those that are
    compile-time constants. general: those that Triton does not specialize code for. defaults: default values by name."""

    kernel: str
    names: tuple[str, ...]
    constants: frozenset[str]
    general: frozenset[str]
    defaults: Mapping[str, object]

    @classmethod
    def of(cls, kernel: Any) -> "Parameters":
        """kernel: the result of `triton.jit`."""
        from triton.runtime.jit import JITFunction

        found = signature(kernel.fn).parameters
        # The interpreter's functions keep the decorator's arguments.
        given = kernel.do_not_specialize if isinstance(kernel, JITFunction) else kernel.kwargs["do_not_specialize"]
        names = tuple(found)
        return cls(
            kernel=f"{kernel.fn.__module__}:{kernel.fn.__qualname__}",
            names=names,
            constants=frozenset(name for name in names if "constexpr" in str(found[name].annotation)),
            general=frozenset(each if isinstance(each, str) else names[each] for each in given or ()),
            defaults={name: found[name].default for name in names if found[name].default is not found[name].empty},
        )


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel with the arguments that its code is compiled for. kernel: its path. arguments: by parameter, reduced to the
    properties that Triton specializes code for, so that equal variants are one compiled kernel. options: the launch's other keyword
    arguments, sorted (`num_warps`, ...)."""

    kernel: str
    arguments: tuple[tuple[str, object], ...]
    options: tuple[tuple[str, object], ...]

    @classmethod
    def of(cls, parameters: Parameters, given: Mapping[str, object]) -> "Variant":
        """given: arguments and options of a launch, by name. Raises TypeError for one that has no meaning in another process."""
        values = {**parameters.defaults, **given}
        arguments = tuple(
            (
                name,
                _constant(values[name])
                if name in parameters.constants
                else _reduced(values[name], name not in parameters.general),
            )
            for name in parameters.names
        )
        options = sorted((name, _constant(value)) for name, value in given.items() if name not in parameters.names)
        return cls(parameters.kernel, arguments, tuple(options))

    def found(self) -> Any:
        """Returns the kernel. Raises ImportError or AttributeError if there is none.

        Up to Triton 3.6, the key of a kernel in the cache depends on which of the functions that it calls have keys already: all of
        them get theirs here, before it, so that the keys of all processes are equal.
        """
        from triton.runtime.jit import JITFunction

        kernel = _at(self.kernel)
        for function in reached(kernel):
            if isinstance(function, JITFunction):  # the interpreter's functions have no keys
                _ = function.cache_key
        return kernel

    def rebuilt(self) -> dict[str, object]:
        """Keyword arguments of a launch that is of this variant."""
        return {name: _rebuilt(value) for name, value in (*self.arguments, *self.options)}


def reached(kernel: Any) -> list[Any]:
    """A kernel, and the functions of Triton that it calls by name, each after those that it calls itself."""
    found: list[Any] = []
    seen: set[int] = set()

    def visit(function: Any) -> None:
        if id(function) in seen:
            return
        seen.add(id(function))
        for name in function.fn.__code__.co_names:
            called = function.fn.__globals__.get(name)
            if isinstance(called, type(kernel)):
                visit(called)
        found.append(function)

    visit(kernel)
    return found


def _reduced(value: object, specialized: bool) -> object:
    """One representative of all arguments for which Triton compiles the same code."""
    match value:
        case None | bool():
            return value
        case int():
            return _integer(value, specialized)
        case float():
            return 0.0  # never specialized
        case Tensor():
            return Pointer(value.dtype, not specialized or value.data_ptr() % ALIGNMENT == 0)
        case tuple():
            items = tuple(_reduced(item, specialized) for item in value)
            return Group(f"{type(value).__module__}:{type(value).__qualname__}", items)
    if type(value).__name__ == "TensorDescriptor":
        tma: Any = value
        shape, strides, block = (tuple(map(int, sizes)) for sizes in (tma.shape, tma.strides, tma.block_shape))
        return Descriptor(Pointer(tma.base.dtype, True), shape, strides, block, tma.padding)
    raise TypeError(f"an argument is of type {type(value).__name__}")


def _integer(value: int, specialized: bool) -> int:
    if specialized and value == 1:
        return 1
    least = next((width for width in _WIDTHS if abs(value) >= width), 2)
    divisible = specialized and value % ALIGNMENT == 0
    return -(-least // ALIGNMENT) * ALIGNMENT if divisible else least + 1


def _constant(value: object) -> object:
    """Compile-time constants and options belong to the variant as they are."""
    if isinstance(value, bool | int | float | str | None):
        return value
    raise TypeError(f"a constant is of type {type(value).__name__}")


def _rebuilt(value: object) -> object:
    return value.rebuilt() if isinstance(value, Descriptor | Group) else value


def _at(path: str) -> Any:
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found
