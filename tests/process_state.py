"""What tests of other files would find changed: the state of the process, outside of objects that a test makes."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import torch

from tests.support.entry_points import REPOSITORY

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD)
_NOTHING = "nothing"
_OWN = frozenset({"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR"})
"""Variables that pytest sets, and torch at the import of its compiler."""


def process_state() -> Mapping[str, object]:
    """By name. Values of two calls are equal unless something changed in between."""
    return {
        "sys.path": list(sys.path),
        "sys.meta_path": list(sys.meta_path),
        "sys.excepthook": sys.excepthook,
        "sys.unraisablehook": sys.unraisablehook,
        "sys.getswitchinterval()": sys.getswitchinterval(),
        "threading.excepthook": threading.excepthook,
        "os.getcwd()": os.getcwd(),
        **{f"os.environ[{name!r}]": value for name, value in os.environ.items() if name not in _OWN},
        **{f"signal.getsignal({each.name})": signal.getsignal(each) for each in _SIGNALS},
        **dict(_of_logging()),
        **_of_torch(),
    }


def changes(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """A line for each difference."""
    return [
        f"{name}: {before.get(name, _NOTHING)!r} -> {after.get(name, _NOTHING)!r}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name, _NOTHING) != after.get(name, _NOTHING)
    ]


def _of_torch() -> Mapping[str, object]:
    return {
        "torch.get_num_threads()": torch.get_num_threads(),
        "torch.get_default_dtype()": torch.get_default_dtype(),
        "torch.get_default_device()": torch.get_default_device(),
        "torch.is_grad_enabled()": torch.is_grad_enabled(),
        "torch.is_inference_mode_enabled()": torch.is_inference_mode_enabled(),
        "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled(),
        "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision(),
        "torch.backends.cudnn": (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark),
    }


def _of_logging() -> Iterator[tuple[str, object]]:
    yield "logging.root.manager.disable", logging.root.manager.disable
    yield "logging.root.handlers", list(logging.root.handlers)
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.split(".")[0] in ("omni", "tests"):
            changed = logger.level, logger.disabled, logger.propagate, [*logger.handlers]
            if changed != (logging.NOTSET, False, True, []):
                yield f"logging.getLogger({name!r})", changed


def forget_strangers(made: Path) -> None:
    """Forgets packages and modules of this repository, and of the folder `made` of tests, that `import` would not find any more:
    a test imported them from a path of its own, and another file has others of the same names."""
    paths = {os.path.abspath(each) for each in sys.path if isinstance(each, str)}
    for name, module in list(sys.modules.items()):
        if "." not in name and _home(module) not in paths and _is_ours(_home(module), made):
            for each in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
                del sys.modules[each]


def _home(module: ModuleType) -> str | None:
    """The folder that has the module's file, or the package."""
    spec = module.__spec__
    if spec is None or spec.origin is None or not spec.has_location:
        return None
    file = Path(spec.origin)
    return str((file.parent if file.stem == "__init__" else file).parent)


def _is_ours(home: str | None, made: Path) -> bool:
    if home is None or sys.prefix in (home, *map(str, Path(home).parents)):
        return False
    return REPOSITORY in (Path(home), *Path(home).parents) or made in Path(home).parents
