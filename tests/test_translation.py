"""German is complete, and its texts take the same values as the English ones."""

from __future__ import annotations

import gettext
import re
from pathlib import Path

import pytest
from django.test import Client
from django.utils import translation

import tenant_slots
from tenant_slots.admin import cells
from tenant_slots.stats import rows
from tests.admin.site import QUEUES, change_page
from tests.factories import tenant_queue, waiting_job

MESSAGES = Path(tenant_slots.__file__).parent / "locale" / "de" / "LC_MESSAGES"
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


def test_every_text_is_translated_with_the_same_placeholders() -> None:
    assert len(entries()) > 200
    for source, translated in entries():
        for text in translated:
            assert text, f"not translated: {source}"
            assert set(PLACEHOLDER.findall(text)) == set(PLACEHOLDER.findall(source)), source


def test_the_compiled_messages_match_their_source() -> None:
    with (MESSAGES / "django.mo").open("rb") as compiled:
        catalog = gettext.GNUTranslations(compiled)
    plural = {source for source, translated in entries() if len(translated) > 1}
    stale = [
        source
        for source, translated in entries()
        if source not in plural and catalog.gettext(unescaped(source)) != unescaped(translated[0])
    ]
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
