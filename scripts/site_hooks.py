"""Hooks of MkDocs: README.md is the site's start page, the reference is generated, and linked sources have pages."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from reference.links import COPIED, START, outside, shown, site_path, with_moved_links
from reference.pages import pages

UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the start page, the reference, and a page for each file outside of docs that a document links to."""
    files.append(File.generated(config, "index.md", content=START.read_text()))
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    for source in outside():
        if source.suffix in COPIED:
            files.append(File.generated(config, site_path(source), abs_src_path=str(source)))
        else:
            files.append(File.generated(config, site_path(source), content=UNSEARCHED + shown(source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Gives documents the links of their pages; generated pages have them."""
    path = page.file.src_uri
    return markdown if path.startswith(("source/", "reference/")) else with_moved_links(markdown, path)
