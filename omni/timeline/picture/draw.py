"""Draws traces into a file."""

import os
from collections.abc import Sequence
from pathlib import Path

from omni.errors import InputError
from omni.timeline.picture.html import write_html
from omni.timeline.picture.layout import Scale, header, ruler
from omni.timeline.picture.panel import panel
from omni.timeline.picture.png import write_png
from omni.timeline.picture.scene import Scene
from omni.timeline.picture.window import Window
from omni.timeline.trace import Trace
from omni.utils.files import replacing

_WIDTH = 1400
_WRITERS = {".png": write_png, ".html": write_html}


def draw(panels: Sequence[tuple[str, Trace, Window]], path: str | os.PathLike[str]) -> None:
    """Draws a part of each trace, with its title, one below the other on one scale, into a .png or a .html file.

    Raises InputError for another type of file, or a file that cannot be written; an existing file then stays unchanged.
    """
    target = Path(path)
    write = _WRITERS.get(target.suffix)
    if write is None:
        raise InputError(str(path), "is no kind of picture", f"name a file that ends in {' or '.join(_WRITERS)}")
    try:
        with replacing(target) as file:
            write(scene_of(panels), file)
    except OSError as error:
        raise InputError(str(path), f"cannot be written ({error.strerror})", "give another file name") from error


def scene_of(panels: Sequence[tuple[str, Trace, Window]]) -> Scene:
    """The drawing, as wide as the longest window."""
    scene = Scene(_WIDTH)
    longest = max(window.shown.length for _, _, window in panels)
    categories = {
        span.category for _, trace, window in panels for span in trace.phases if span.ran.overlaps(window.shown)
    }
    header(scene, categories)
    for title, trace, window in panels:
        scale = Scale.of(window.shown, longest, _WIDTH)
        panel(scene, title, trace, window, scale)
        ruler(scene, scale)
    scene.height += 10
    return scene
