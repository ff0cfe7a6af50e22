"""The site: its pages have a place, links lead to pages, and the generated reference is complete."""

import re
from pathlib import Path

import pytest
from reference.links import DOCS, START, documents, outside, shown, site_path, targets, with_moved_links
from reference.pages import fields_of, group_page, pages
from reference.public import SETTINGS
from reference.sources import find, listed

from omni import OmniError, errors
from tests.support.entry_points import REPOSITORY

NAV = re.findall(r"([\w/]+\.md)$", (REPOSITORY / "mkdocs.yml").read_text(), re.MULTILINE)


def test_every_page_has_one_place_in_the_site() -> None:
    written = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert sorted(NAV) == sorted({"index.md"} | written | set(pages()))


@pytest.mark.parametrize("document", documents(), ids=lambda document: document.name)
def test_links_of_documents_lead_to_pages(document: Path) -> None:
    pictures = [path.relative_to(DOCS).as_posix() for path in (DOCS / "pictures").iterdir()]
    known = {*NAV, *map(site_path, outside()), *pictures}
    assert {site_path(target) for target in targets(document)} <= known


def test_links_are_those_of_the_page() -> None:
    text = (
        "[a](../outputs.md#hidden-states) [b](../../README.md) [c](../../omni/errors.py) [d](https://x.org) [e](#f)\n"
    )
    fenced = "```python\nx[0](../outputs.md)\n```\n[`g`]: ../../examples/plugin\n"
    moved = with_moved_links(text + fenced, "howto/pcm.md")
    assert moved == (
        "[a](../outputs.md#hidden-states) [b](../index.md) [c](../source/omni/errors.py.md) [d](https://x.org) [e](#f)\n"
        "```python\nx[0](../outputs.md)\n```\n[`g`]: ../source/examples/plugin.md\n"
    )
    assert with_moved_links("[a](docs/outputs.md) [b](LICENSE)", "index.md") == "[a](outputs.md) [b](source/LICENSE.md)"


def test_pages_show_files_and_folders() -> None:
    assert "# omni/errors.py\n\n`````python\n" in shown(REPOSITORY / "omni" / "errors.py")
    folder = shown(REPOSITORY / "examples" / "plugin")
    assert "- [omni_bigram/model.py](plugin/omni_bigram/model.py.md)" in folder
    assert REPOSITORY / "examples" / "plugin" / "omni_bigram" / "model.py" in outside()


@pytest.mark.parametrize("where", SETTINGS.values())
def test_the_reference_has_the_meaning_of_every_setting(where: str) -> None:
    module, _, name = where.partition(":")
    table = pages()["reference/settings.md"].partition(f"`{module}.{name}`")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", table, re.MULTILINE)
    assert rows
    assert not [field for field, meaning in rows if not meaning]
    assert fields_of(find(module, name)).keys() >= {field for field, _ in rows}


@pytest.mark.parametrize("title", listed())
def test_the_reference_has_every_public_name(title: str) -> None:
    page = group_page(title)
    for module, names in listed()[title].items():
        section = page.partition(f"## `{module}`\n")[2].partition("\n## ")[0]
        assert re.findall(r"^### `(\w+)`$", section, re.MULTILINE) == list(names)


def test_the_page_of_errors_has_every_class() -> None:
    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, OmniError) and not name.startswith("_")
    }
    page = (DOCS / "errors.md").read_text()
    assert set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE)) == classes - {"OmniError"}


def test_the_start_page_is_the_readme() -> None:
    assert START == REPOSITORY / "README.md"
    assert site_path(START) == NAV[0] == "index.md"
