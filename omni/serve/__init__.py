"""An HTTP server whose contract is the OpenAI SDK's types: `omni serve`, or `create_app` in a program of one's own.

Needs the extra: `pip install 'omni-stages[serve]'`. Names are imported when first used: a process of encoders starts without torch.
"""

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from omni.serve.app import create_app
    from omni.serve.options import ServeOptions

__all__ = ["ServeOptions", "create_app"]

_HOME_OF = {"ServeOptions": "options", "create_app": "app"}

# Hidden from type checkers, which would otherwise accept every misspelt name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            raise AttributeError(f"module 'omni.serve' has no attribute {name!r}")
        value = vars(import_module(f"omni.serve.{_HOME_OF[name]}"))[name]
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
