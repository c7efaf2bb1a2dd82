"""The manual as a site: `tox -e docs` builds it into docs/_build/html, from the pages that GitHub shows too."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

PYPROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]

project = "tenant_slots"
author = copyright = PYPROJECT["authors"][0]["name"]
version = release = PYPROJECT["version"]

extensions = ["myst_parser"]
exclude_patterns = ["_build"]

# Anchors as GitHub makes them of headings, so that a link works in both places.
myst_heading_anchors = 6

html_theme = "furo"
html_title = f"tenant_slots {release}"
html_theme_options = {
    "source_repository": PYPROJECT["urls"]["Homepage"],
    "source_branch": "main",
    "source_directory": "docs/",
}


def setup(app: Sphinx) -> None:
    app.add_lexer("csv", TextLexer)  # GitHub has colours for it, Pygments has not
    app.connect("source-read", _keep_links_inside_the_site)


def _keep_links_inside_the_site(app: Sphinx, page: str, source: list[str]) -> None:
    """Links lead to the files above docs/, for GitHub; the site has them as changelog.md and security.md."""
    for name in ("CHANGELOG", "SECURITY"):
        source[0] = source[0].replace(f"../{name}.md)", f"{name.lower()}.md)")
