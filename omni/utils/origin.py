"""The origin of an error: the plugin's distribution, file and line. Only the standard library, since `omni.errors` uses it."""

import inspect
import linecache
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from importlib.metadata import Distribution, entry_points
from pathlib import Path
from traceback import walk_tb
from types import FrameType, FunctionType, MethodType, ModuleType, TracebackType
from typing import NamedTuple

_GROUP = "omni"
_FRAMEWORK = "omni"
"""The package of this file. The stage kinds and families beside it are of its distribution: others are blamed before them."""
_TRACEBACK = vars(BaseException)["__traceback__"]
_NAME, _MODULE = vars(type)["__name__"], vars(type)["__module__"]
_LIBRARIES = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def origin(error: BaseException | None = None, code: object = None) -> str:
    """Distribution, file and line of the plugin code to blame; empty if it is unknown.

    These are those of the innermost frame of a plugin that is not omni's own, else of `code` (the function, class or object that
    was called) if that is of such a plugin, else of the innermost frame of one of omni's own, else of `code`. A method that a
    plugin's class inherits from omni is that class's: omni's part only calls the class's methods.
    """
    frames = [] if error is None else [(frame, line) for frame, line in _frames(error) if _of_plugin(frame)]
    places = [(_is_own(_package(frame)), frame, line) for frame, line in reversed(frames)]
    for own, frame, line in places:
        if not own:
            return _place(_package(frame), frame.f_code.co_filename, line)
    if isinstance(error, SyntaxError) and (place := _place_of_syntax(error)):
        return place
    called = _origin_of(code) if code is not None else None
    if called is not None and (not places or not _is_own(called[0])):
        return _place(*called)
    if not places:
        return ""
    _, frame, line = places[0]
    return _place(_package(frame), frame.f_code.co_filename, line)


def origin_outside(error: BaseException) -> str:
    """As `origin`, but empty if no plugin ran that is installed and not omni's own."""
    for frame, line in reversed(list(walk_tb(error.__traceback__))):
        if _package(frame) in _distributions() and not _is_omni(_package(frame)):
            return _place(_package(frame), frame.f_code.co_filename, line)
    return ""


def origin_of_module(module: ModuleType) -> str:
    """Distribution and file of a module; without the distribution if it is of no plugin."""
    distribution = _distributions().get(module.__name__.partition(".")[0])
    return f"plugin {distribution}, {module.__file__}" if distribution is not None else f"{module.__file__}"


def worked_on(error: BaseException, thing: object) -> bool:
    """Whether omni's code was working on `thing`, a local variable of it, when the error was raised: then a result of `thing` may
    be the cause. False if a plugin's code raised it."""
    frames = [frame for frame, _ in _frames(error)]
    if any(_of_plugin(frame) and not _is_own(_package(frame)) for frame in frames):
        return False
    return any(value is thing for frame in frames for value in frame.f_locals.values())


def raised_in(error: BaseException, package: str) -> bool:
    """Whether the innermost frame is of a package, given by its full name."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return bool(frames) and str(frames[-1].f_globals.get("__name__", "")).startswith(f"{package}.")


def raised_in_plugin(error: BaseException) -> bool:
    """Whether the innermost frame is of a plugin or of omni, not of a library that it called."""
    frames = [frame for frame, _ in _frames(error)]
    return bool(frames) and (_package(frames[-1]) == _FRAMEWORK or _of_plugin(frames[-1]))


def traceback_of(error: BaseException) -> TracebackType | None:
    """None for an exception that was only made."""
    traceback: TracebackType | None = _TRACEBACK.__get__(error)  # a plugin's class may have a property of the name
    return traceback


def _frames(error: BaseException) -> Iterable[tuple[FrameType, int]]:
    """The frames of its traceback, the outermost first, with their lines."""
    return walk_tb(traceback_of(error))


def is_omni(kind: type) -> bool:
    """Whether a class is of omni, or of one of omni's own plugins."""
    return _is_omni(_module_of(kind).partition(".")[0])


def caller() -> str:
    """As `origin`, of the innermost frame of a plugin that has called the caller of this function."""
    frame = inspect.currentframe()
    while frame is not None and not _of_plugin(frame):
        frame = frame.f_back
    return _place(_package(frame), frame.f_code.co_filename, frame.f_lineno) if frame is not None else ""


class CallSite(NamedTuple):
    """The place of a call."""

    package: str
    file: str
    line: int

    @classmethod
    def here(cls) -> "CallSite":
        """The call of the function that calls this one."""
        frame = inspect.currentframe()
        for _ in range(2):
            assert frame is not None
            frame = frame.f_back
        assert frame is not None
        return cls(_package(frame), frame.f_code.co_filename, frame.f_lineno)

    @property
    def own(self) -> bool:
        """Whether it is in omni or in one of omni's own plugins."""
        return _is_omni(self.package)

    def __str__(self) -> str:
        return _place(*self)


def with_origin(problem: str, error: BaseException | None = None, code: object = None) -> str:
    """`problem`, and the `origin` in brackets."""
    return with_place(problem, origin(error, code))


def with_place(problem: str, place: str) -> str:
    """place: an `origin` or a `caller`, possibly empty."""
    return f"{problem} ({place})" if place else problem


def _place(package: str, file: str, line: int) -> str:
    distribution = _distributions().get(package)
    place = f"{file}:{line}"
    return f"plugin {distribution}, {place}" if distribution is not None else place


def _place_of_syntax(error: SyntaxError) -> str:
    """File and line of a module that cannot be parsed: it has no frame. Empty for text that was compiled."""
    if error.filename is None or error.filename.startswith("<"):
        return ""
    file = Path(error.filename)
    names = (file.stem, *(folder.name for folder in file.parents))
    package = next((name for name in names if name in _distributions()), "")
    return _place(package, error.filename, error.lineno or 1)


def _origin_of(code: object) -> tuple[str, str, int] | None:
    """Package, file and line of the called code; None if they are unknown, and for the framework's."""
    while isinstance(code, partial | MethodType):
        if isinstance(code, MethodType) and (_is_inherited(code) or _is_of_text(code.__func__)):
            code = type(code.__self__)
        else:
            code = code.func if isinstance(code, partial) else code.__func__
    if inspect.isfunction(code):
        code = inspect.unwrap(code, stop=_is_wrapped_in_itself)
    if _is_of_text(code):
        return None
    if isinstance(code, FunctionType):
        place, module = (code.__code__.co_filename, code.__code__.co_firstlineno), _module_of_function(code)
    else:
        kind = code if isinstance(code, type) else type(code)
        module = _module_of(kind)
        found = _place_of_class(kind)
        if found is None:
            return None
        place = found
    package = module.partition(".")[0]
    return None if package == _FRAMEWORK else (package, *place)


def _place_of_class(kind: type) -> tuple[str, int] | None:
    """File and line of a class; None without source: a builtin, or a class made by a call.

    `inspect.getsourcelines` parses the whole file: it keeps the interpreter lock for long, and in Python 3.11 it raises SystemError
    if another thread parses at the same time.
    """
    try:
        file = inspect.getsourcefile(kind)
    except Exception:  # TypeError of a builtin; others of a plugin's metaclass
        return None
    if file is None:
        return None
    header = re.compile(rf"\s*class\s+{re.escape(_NAME.__get__(kind))}\b")
    lines = [number for number, text in enumerate(linecache.getlines(file), start=1) if header.match(text)]
    codes = [value.__code__ for value in vars(kind).values() if isinstance(value, FunctionType)]
    first = min((code.co_firstlineno for code in codes if code.co_filename == file), default=None)
    if first is not None:  # of several classes with this name, the one whose methods follow
        lines = [number for number in lines if number < first][-1:]
    return (file, lines[0]) if lines else None


def _module_of(kind: type) -> str:
    """The name of a class's module. Safe for metaclasses that redefine it."""
    module = _MODULE.__get__(kind)
    return module if isinstance(module, str) else ""


def _is_of_text(code: object) -> bool:
    """Whether it is a function that was made of text, as a library does: it has no file, and no module."""
    return isinstance(code, FunctionType) and (
        code.__code__.co_filename.startswith("<") or not _module_of_function(code)
    )


def _is_wrapped_in_itself(function: Callable[..., object]) -> bool:
    return vars(function).get("__wrapped__") is function


def _module_of_function(function: FunctionType) -> str:
    """The name of a function's module; empty for one that was made of text, and has none."""
    module: object = function.__module__
    return module if isinstance(module, str) else ""


def _is_inherited(method: MethodType) -> bool:
    """Whether omni defines the method, and a class of a third-party plugin inherits it."""
    package = _module_of(type(method.__self__)).partition(".")[0]
    return _is_omni(str(method.__func__.__module__).partition(".")[0]) and not _is_omni(package)


def _is_omni(package: str) -> bool:
    return package == _FRAMEWORK or _is_own(package)


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _of_plugin(frame: FrameType) -> bool:
    """Whether the frame is neither of omni nor of a library. Code that is not installed counts as a plugin's."""
    package, file = _package(frame), frame.f_code.co_filename
    if package == _FRAMEWORK or file.startswith("<"):
        return False
    return package in _distributions() or not file.startswith(_LIBRARIES)


def _is_own(package: str) -> bool:
    found = _distributions()
    return package in found and found[package] == found.get(_FRAMEWORK)


def _distributions() -> Mapping[str, str]:
    return _distributions_on(tuple(str(path) for path in sys.path))


@lru_cache(maxsize=4)
def _distributions_on(path: tuple[str, ...]) -> Mapping[str, str]:
    """The distributions of plugins, by their packages. path: of imports, on which it depends."""
    found: dict[str, str] = {}
    for point in entry_points(group=_GROUP):
        if point.dist is not None:
            packages = {point.module.partition(".")[0], *_packages_of(point.dist)}
            found |= dict.fromkeys(packages, point.dist.name)
    return found


def _packages_of(distribution: Distribution) -> Iterable[str]:
    listed = distribution.read_text("top_level.txt")
    if listed is not None:
        return listed.split()
    return {file.parts[0] for file in distribution.files or () if file.suffix == ".py" and len(file.parts) > 1}
