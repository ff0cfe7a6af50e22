"""Pictures of traces whose every time is known."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image, ImageColor

from omni.device import PhaseCategory
from omni.errors import InputError
from omni.timeline import HostSpan, Trace
from omni.timeline.picture import draw, excerpt_of, palette
from omni.timeline.picture.draw import scene_of
from omni.timeline.picture.scene import Box, Polygon, Scene, Text
from tests.omni.timeline.made_trace import STEP, made_trace
from tests.support.resources import no_file_over

GAPS = (5_000, 90_000, 5_000, 5_000)


def scene(trace: Trace, **chosen: Any) -> Scene:
    return scene_of([("title", trace, excerpt_of(trace, **chosen))])


def texts(drawn: Scene) -> list[str]:
    return [item.text for item in drawn.items if isinstance(item, Text)]


def hatched(drawn: Scene) -> list[Box]:
    return [item for item in drawn.items if isinstance(item, Box) and item.hatched][1:]  # the first is the legend's


def test_a_gap_between_steps_is_drawn_as_long_as_it_is_and_labelled():
    trace = made_trace(GAPS)
    drawn = scene(trace, first=11, steps=2)
    window = excerpt_of(trace, first=11, steps=2).shown
    per_pixel = window.length / (drawn.width - 128 - 16)
    widest = max(hatched(drawn), key=lambda box: box.width)
    assert widest.width == pytest.approx(90_000 / per_pixel)
    assert "idle 90.0 us" in texts(drawn)
    assert any(text.startswith("step 11: 823 us") for text in texts(drawn))


def test_a_small_gap_between_steps_is_labelled_too():
    assert "idle 5.00 us" in texts(scene(made_trace(GAPS), first=10, steps=2))


def test_token_points_are_marked():
    drawn = scene(made_trace(GAPS), first=11, steps=2)
    tips = {item.tip for item in drawn.items if isinstance(item, Polygon)}
    assert {"token point of step 11", "token point of step 12"} <= tips


def test_the_legend_has_the_drawn_categories_and_no_more():
    said = texts(scene(made_trace(GAPS)))
    assert {"preprocess", "forward", "token point", "scores", "postprocess"} <= set(said)
    assert said.count("token point") == 1
    assert not {"code prediction", "payload"} & set(said)


def test_every_category_has_a_colour_of_its_own():
    assert set(palette.CATEGORIES) == set(PhaseCategory) - {PhaseCategory.TOKEN_POINT}
    assert len(set(palette.CATEGORIES.values())) == len(palette.CATEGORIES)


def test_a_png_shows_phases_and_gaps_and_is_the_same_every_time(tmp_path: Path):
    trace = made_trace(GAPS)
    window = excerpt_of(trace, first=11, steps=2)
    for name in ("one.png", "two.png"):
        draw([("title", trace, window)], tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    image = Image.open(tmp_path / "one.png").convert("RGB")
    colours = image.getcolors(1 << 20)
    assert colours is not None
    area = {colour: count for count, colour in colours}
    forward, gap = (ImageColor.getrgb(name) for name in (palette.CATEGORIES[PhaseCategory.FORWARD], palette.GAP))
    pixels = 2 * 2 * 40 * 1256 / window.shown.length  # of a nanosecond of the main lane
    assert area[forward] == pytest.approx(2 * 700_000 * pixels, rel=0.05)
    assert area[gap] > 0.5 * 90_000 * pixels, "stripes and a border take the rest"


def test_html_is_a_whole_page_with_tips_that_loads_nothing(tmp_path: Path):
    trace = made_trace(GAPS)
    trace = replace(trace, phases=tuple(replace(span, phase=f"<{span.phase}>") for span in trace.phases))
    draw([("a < b", trace, excerpt_of(trace))], tmp_path / "out.html")
    page = (tmp_path / "out.html").read_text()
    assert "http" not in page
    assert "src=" not in page
    svg = ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    tips = [tip.text or "" for tip in svg.iter("title")]
    assert any(tip.startswith("<run_forward> (forward, step 1") for tip in tips)
    assert any(tip == "nothing runs for 5.00 us" for tip in tips)
    assert "a < b" in [text.text for text in svg.iter("text")]


def test_two_traces_are_drawn_on_one_scale():
    short, long = made_trace((5_000,) * 4), made_trace((5_000,) * 8)
    drawn = scene_of([("one", short, excerpt_of(short, steps=1)), ("two", long, excerpt_of(long, steps=4))])
    forward = [item for item in drawn.items if isinstance(item, Box) and item.tip.startswith("run_forward")]
    widest = max(box.width for box in forward)
    whole = [box.width for box in forward if box.width == pytest.approx(widest)]
    assert len(whole) == 5, "one step of the first, four of the second"
    assert {"one", "two"} <= set(texts(drawn))


def test_the_window_takes_as_long_as_most():
    trace = made_trace((400_000, 5_000, 5_000, 5_000, 700_000))
    window = excerpt_of(trace, steps=2)
    assert [step.number for step in window.steps] in ([11, 12], [12, 13], [13, 14])
    length = 2 * STEP + 5_000
    assert length < window.shown.length < length * 1.07


def test_the_window_can_be_chosen():
    trace = made_trace(GAPS)
    assert [step.number for step in excerpt_of(trace, first=12, steps=2).steps] == [12, 13]
    assert [step.number for step in excerpt_of(trace, first=14, steps=5).steps] == [14]
    assert len(excerpt_of(trace, steps=50).steps) == 5
    with pytest.raises(InputError, match=r"--from: step 3 of 'thinker' is not in the trace; use one of 10 to 14"):
        excerpt_of(trace, first=3)
    with pytest.raises(InputError, match="--stage: 'talker' has no steps in the trace; use thinker"):
        excerpt_of(trace, stage="talker")


def test_host_work_alone_is_a_band_without_lanes():
    alone = made_trace(GAPS)
    took = excerpt_of(alone).shown
    drawn = scene(replace(alone, host=(*alone.host, HostSpan("engine", "route", {}, took))))
    assert texts(drawn).count("engine") == texts(drawn).count("route") == 1
    assert texts(drawn).count("device") == texts(scene(alone)).count("device") == 1
    (box,) = (item for item in drawn.items if isinstance(item, Box) and item.tip.startswith("route: "))
    assert box.width == drawn.width - 128 - 16


def test_a_trace_without_steps_is_drawn_from_its_start():
    trace = made_trace(GAPS)
    trace = replace(trace, phases=tuple(replace(span, step=None) for span in trace.phases), host=())
    window = excerpt_of(trace)
    assert window.steps == ()
    assert hatched(scene(trace)) == []
    assert "run_forward" in texts(scene(trace))


def test_a_name_that_is_no_picture_is_refused(tmp_path: Path):
    trace = made_trace(GAPS)
    with pytest.raises(InputError, match=r"name a file that ends in \.png or \.html"):
        draw([("title", trace, excerpt_of(trace))], tmp_path / "out.gif")
    with pytest.raises(InputError, match="cannot be written"):
        draw([("title", trace, excerpt_of(trace))], tmp_path / "no folder" / "out.png")


@pytest.mark.parametrize("name", ["out.png", "out.html"])
def test_a_full_disk_leaves_the_picture_that_was_there(tmp_path: Path, name: str):
    trace = made_trace(GAPS)
    path = tmp_path / name
    path.write_bytes(b"before")
    with no_file_over(1000), pytest.raises(InputError, match=r"cannot be written \(File too large\)"):
        draw([("title", trace, excerpt_of(trace))], path)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [(name, b"before")]
