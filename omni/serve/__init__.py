"""An HTTP server whose contract is the OpenAI SDK's types: `omni serve`, or `create_app` in a program of one's own.

Needs the extra: `pip install 'omni-stages[serve]'`.
"""

from omni.serve.app import create_app
from omni.serve.options import ServeOptions

__all__ = ["ServeOptions", "create_app"]
