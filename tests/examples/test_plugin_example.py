"""The tutorial's plugin: found by its own pyproject, run through the public interface, and as its tutorials show it."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from omni import InputError, Omni, SamplingParams
from omni.plugin import locate
from omni.plugin.manager import Plugins
from tests.support.echo_family import eventually
from tests.support.entry_points import REPOSITORY

HOME = REPOSITORY / "examples" / "plugin"
TUTORIALS = REPOSITORY / "docs" / "tutorials"
TUTORIAL = "".join((TUTORIALS / page).read_text() for page in ("family.md", "processor.md"))


@pytest.fixture
def omni(plugins: Plugins, folder: Path) -> Iterator[Omni]:
    with Omni(folder, plugins=plugins, device="cpu") as omni:
        yield omni


def follow() -> dict[str, Counter[str]]:
    """What follows what in the sentence, counted."""
    text = locate("omni_bigram.tiny:TEXT", "text")
    assert isinstance(text, str)
    counts: dict[str, Counter[str]] = {character: Counter() for character in text}
    for first, second in pairwise(text):
        counts[first][second] += 1
    return counts


def test_greedy_text_follows_the_counts(omni: Omni):
    result = omni.generate("wai", stream=False, sampling=SamplingParams(temperature=0.0, max_tokens=40))
    counts = follow()
    assert len(result.text) == 40
    for first, second in pairwise("i" + result.text):
        assert counts[first][second] == max(counts[first].values())


def test_sampled_text_ends_where_the_sentence_does(omni: Omni):
    counts = follow()
    results = omni.generate(["The ", "token ", "any"], stream=False, sampling=SamplingParams(seed=3))
    assert all(result.text.endswith(".\n") for result in results)
    followed = [counts[a][b] > 0 for result in results for a, b in pairwise(result.text)]
    assert sum(followed) > 0.9 * len(followed)


def test_media_are_refused(omni: Omni):
    picture = {"type": "image_url", "image_url": {"url": str(REPOSITORY / "examples/assets/shapes.png")}}
    with pytest.raises(InputError, match="give this model text only"):
        omni.generate([{"role": "user", "content": [picture]}], stream=False)
    assert eventually(lambda: omni.idle)


def test_the_tutorial_shows_the_plugin_as_it_is():
    shown = dict(
        re.findall(r"^`omni_bigram/([\w/]+\.py)`: [^\n]*\n\n```python\n(.*?)```", TUTORIAL, re.DOTALL | re.MULTILINE)
    )
    processors = {f"processors/{name}.py" for name in ("__init__", "hurry", "no_repeat")}
    assert shown.keys() == {"plugin.py", "pipeline.py", "model.py", "frontend.py", "tiny.py", *processors}
    for name, code in shown.items():
        assert code in (HOME / "omni_bigram" / name).read_text(), f"{name} differs"
    (pyproject,) = re.findall(r"```toml\n(.*?)```", TUTORIAL, re.DOTALL)
    assert pyproject in (HOME / "pyproject.toml").read_text()


@pytest.mark.usefixtures("reader_s_folder")
def test_two_seeds_give_the_tutorials_texts(capsys: pytest.CaptureFixture[str]):
    run_listing("tutorials/family.md", "from omni import Omni, ")
    first, second, again, _ = capsys.readouterr().out.splitlines()
    assert first == again != second


@pytest.mark.usefixtures("reader_s_folder")
def test_processors_are_used_as_the_tutorial_says(capsys: pytest.CaptureFixture[str]):
    run_listing("tutorials/processor.md", "from omni import Omni, ")
    (text, *_) = capsys.readouterr().out.splitlines()
    assert text
    runs = [text[place : place + 4] for place in range(len(text) - 3)]
    assert len(runs) == len(set(runs))


@pytest.mark.usefixtures("reader_s_folder")
def test_the_guide_s_engine_and_model_answer(capsys: pytest.CaptureFixture[str]):
    run_listing("plugins.md", "from omni import Omni, ")
    run_listing("plugins.md", "from omni import SamplingParams\nfrom omni.testing")
    assert capsys.readouterr().out.strip()


def run_listing(page: str, beginning: str) -> None:
    """Runs the one listing of a page that begins so."""
    listings = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs" / page).read_text(), re.DOTALL)
    (listing,) = (each for each in listings if each.startswith(beginning))
    exec(listing, {"__name__": "listing"})


def test_the_example_stays_short():
    code = [
        line
        for path in (HOME / "omni_bigram").glob("*.py")
        for line in ast.unparse(ast.parse(path.read_text())).splitlines()
    ]
    assert len(code) < 130
