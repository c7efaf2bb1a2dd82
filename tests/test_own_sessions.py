"""Sessions that nobody but we use, where the system is short of something."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest
from django.db import OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from tenant_slots.conf import app_settings
from tenant_slots.db.sessions import private_connection
from tenant_slots.models import TenantJob
from tenant_slots.running import recording

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("_no_files")]


@pytest.fixture
def _no_files(db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As the driver, or a selector that it makes, says it where no more files can be opened."""

    def connect(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(type(connections[app_settings.DATABASE]), "get_new_connection", connect)
        yield


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_database_for_which_there_is_no_file_is_out_of_reach(is_silent: bool) -> None:
    with (
        private_connection(5, is_silent=is_silent),
        pytest.raises(OperationalError, match="Too many open files"),
    ):
        TenantJob.objects.exists()


def test_what_is_to_be_recorded_then_is_tried_again() -> None:
    outages: list[str] = []
    with private_connection(5, is_silent=True):
        assert recording.persistently(TenantJob.objects.exists, lambda: outages.append("one"), [0.01] * 9) is None
    assert len(outages) > 1


def test_control_the_connections_of_the_project_are_as_it_has_them() -> None:
    alias = app_settings.DATABASE
    before: BaseDatabaseWrapper = connections[alias]
    connections[alias] = type(before)(before.settings_dict, alias)
    try:
        with pytest.raises(OSError, match="Too many open files"):
            TenantJob.objects.exists()
    finally:
        connections[alias] = before
