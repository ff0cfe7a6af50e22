"""The origin of an error: the plugin's distribution, file and line. Only the standard library, since `omni.errors` uses it."""

import inspect
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from importlib.metadata import Distribution, entry_points
from traceback import walk_tb
from types import FrameType, FunctionType, MethodType

_GROUP = "omni"
_FRAMEWORK = "omni"
"""The package of this file. The stage kinds and families beside it are of its distribution: others are blamed before them."""
_LIBRARIES = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def origin(error: BaseException | None = None, code: object = None) -> str:
    """Distribution, file and line of the plugin code to blame; empty if it is unknown.

    These are those of the innermost frame of a plugin that is not omni's own, else of `code` (the function, class or object that
    was called), else of the innermost frame of one of omni's own.
    """
    frames = (
        [] if error is None else [(frame, line) for frame, line in walk_tb(error.__traceback__) if _of_plugin(frame)]
    )
    places = [(_is_own(_package(frame)), frame, line) for frame, line in reversed(frames)]
    for own, frame, line in places:
        if not own:
            return _place(_package(frame), frame.f_code.co_filename, line)
    called = _place_of(code) if code is not None else ""
    if called or not places:
        return called
    _, frame, line = places[0]
    return _place(_package(frame), frame.f_code.co_filename, line)


def raised_in_plugin(error: BaseException) -> bool:
    """Whether the innermost frame is of a plugin or of omni, not of a library that it called."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return bool(frames) and (_package(frames[-1]) == _FRAMEWORK or _of_plugin(frames[-1]))


def caller() -> str:
    """As `origin`, of the innermost frame of a plugin that has called the caller of this function."""
    frame = inspect.currentframe()
    while frame is not None and not _of_plugin(frame):
        frame = frame.f_back
    return _place(_package(frame), frame.f_code.co_filename, frame.f_lineno) if frame is not None else ""


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


def _place_of(code: object) -> str:
    while isinstance(code, partial | MethodType):
        code = code.func if isinstance(code, partial) else code.__func__
    if inspect.isfunction(code):
        code = inspect.unwrap(code)
    if isinstance(code, FunctionType):
        place, module = (code.__code__.co_filename, code.__code__.co_firstlineno), code.__module__
    else:
        kind = code if inspect.isclass(code) else type(code)
        module = kind.__module__
        try:
            place = str(inspect.getsourcefile(kind)), inspect.getsourcelines(kind)[1]
        except (OSError, TypeError):  # no source: a builtin, or a class made by a call
            return ""
    package = module.partition(".")[0]
    return "" if package == _FRAMEWORK else _place(package, *place)


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
