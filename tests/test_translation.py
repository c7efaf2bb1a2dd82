"""German is complete, and its texts take the same values as the English ones."""

from __future__ import annotations

import ast
import gettext
import re
from pathlib import Path

import pytest
from django.test import Client
from django.utils import translation
from django.utils.translation.template import templatize

import tenant_slots
from tenant_slots.admin import cells
from tenant_slots.stats import rows
from tests.admin.site import QUEUES, change_page
from tests.factories import tenant_queue, waiting_job

PACKAGE = Path(tenant_slots.__file__).parent
MESSAGES = PACKAGE / "locale" / "de" / "LC_MESSAGES"
MARKS = {"_", "gettext", "gettext_lazy", "ngettext", "ngettext_lazy"}
"""Functions whose first argument is a text to be translated."""

MARKED = re.compile(r"\b(?:_|n?gettext)\(.+?\)(?=\s)", re.DOTALL)
"""In what Django makes of a template for xgettext."""

PLACEHOLDER = re.compile(r"%\(\w+\)[ds]|\{\w+\}")


def entries() -> list[tuple[str, list[str]]]:
    """Each text of the source file with its translations."""
    found = []
    for block in (MESSAGES / "django.po").read_text().split("\n\n")[1:]:
        texts: dict[str, str] = {}
        key = ""
        for line in block.splitlines():
            if line.startswith(("msgid", "msgstr")):
                key, _, line = line.partition(" ")
            if line.startswith('"'):
                texts[key] = texts.get(key, "") + line[1:-1]
        if texts.get("msgid"):
            found.append((texts["msgid"], [text for name, text in texts.items() if name.startswith("msgstr")]))
    return found


def unescaped(text: str) -> str:
    return text.replace('\\"', '"')


def texts_to_translate() -> set[str]:
    sources = [path.read_text() for path in PACKAGE.rglob("*.py")]
    for path in PACKAGE.rglob("*.html"):
        sources += MARKED.findall(f"{templatize(path.read_text(), origin=str(path))}\n")
    calls = [node for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    marked = [call.args[0] for call in calls if getattr(call.func, "id", "") in MARKS and call.args]
    return {text.value for text in marked if isinstance(text, ast.Constant)}


def test_every_text_of_the_code_and_the_templates_is_in_the_source_file() -> None:
    found = texts_to_translate()
    assert {"%(count)d job waits.", "Update every"} <= found, "the control: one of the code, and one of a template"
    assert found - {unescaped(source) for source, _ in entries()} == set()


def test_every_text_is_translated_with_the_same_placeholders() -> None:
    assert len(entries()) > 200
    for source, translated in entries():
        for text in translated:
            assert text, f"not translated: {source}"
            assert set(PLACEHOLDER.findall(text)) == set(PLACEHOLDER.findall(source)), source


@pytest.mark.parametrize(("word", "german"), [("backlog", "Rückstau")])
def test_one_thing_has_one_word_in_german_too(word: str, german: str) -> None:
    with_it = [translated for source, translated in entries() if word in source.lower()]
    assert with_it
    assert [text for translated in with_it for text in translated if german.lower() not in text.lower()] == []


def test_the_compiled_messages_match_their_source() -> None:
    with (MESSAGES / "django.mo").open("rb") as compiled:
        catalog = gettext.GNUTranslations(compiled)
    stale = []
    for source, translated in entries():
        text = unescaped(source)
        compiled_texts = [catalog.ngettext(text, "", n) for n in (1, 2)] if translated[1:] else [catalog.gettext(text)]
        if compiled_texts != list(map(unescaped, translated)):
            stale.append(source)
    assert not stale, f"run: python manage.py compilemessages ({stale})"


@pytest.mark.django_db
def test_the_texts_follow_the_viewers_language_though_figures_are_shared() -> None:
    row = tenant_queue(paused=True)
    measured = rows.measured([row.pk])[row.pk]
    for language, text in (("de", "Angehalten"), ("en", "Paused")):
        with translation.override(language):
            assert cells.of_row(measured)[f"{row.pk}.state"]["text"] == text


@pytest.mark.django_db
def test_the_pages_are_in_german_for_those_who_read_german(boss: Client) -> None:
    row = tenant_queue()
    job = waiting_job(row)
    pages = [
        (QUEUES, "Wartet auf einen Worker"),
        (change_page(row), "Jobs, die einen Slot belegen"),
        (change_page(job), "Warum wartet dieser"),
    ]
    for url, text in pages:
        assert text in boss.get(url, headers={"Accept-Language": "de"}).content.decode()
