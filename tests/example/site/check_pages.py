"""A shop's people upload feeds, follow their jobs, and see nobody else's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from example_project.catalogue import feeds, forms
from example_project.catalogue.jobs import import_catalog
from example_project.catalogue.models import Import, Shop
from tenant_slots.models import State, TenantJob
from tenant_slots.tenants import tenant_queue_for
from tests.example.site.conftest import signed_in

pytestmark = pytest.mark.django_db(transaction=True)

INLINE = re.compile(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=|javascript:", re.IGNORECASE)


def upload(client: Client, name: str = "books.csv") -> TenantJob:
    file = SimpleUploadedFile(name, (feeds.SHIPPED / "books.csv").read_bytes(), "text/csv")
    response = client.post("/", {"file": file})
    assert response.status_code == 302, response.content.decode()
    job: TenantJob = TenantJob.objects.get(uuid=response.headers["Location"].split("/")[2])
    return job


def stop_shop(slug: str) -> None:
    tenant_queue_for(slug, "imports").set_limit(0)


def finish(job: TenantJob) -> None:
    result = import_catalog(*job.args, **job.kwargs)
    TenantJob.objects.filter(pk=job.pk).update(state=State.FINISHED, result=result)


@pytest.mark.parametrize("path", ["/", "/products/", "/jobs/6b5e1f5e-4d0e-4f0e-8f0e-1f2e3d4c5b6a/"])
def test_visitors_are_asked_to_sign_in(path: str) -> None:
    response = Client().get(path)
    assert (response.status_code, response.headers["Location"]) == (302, f"/sign-in/?next={path}")


def test_the_status_of_a_job_is_not_there_for_visitors(acme: Shop) -> None:
    """Nor that of a shop to which nobody belongs."""
    job = import_catalog.enqueue("acme", path="books.csv")
    assert Client().get(f"/jobs/{job.uuid}/status/").status_code == 404


def test_an_upload_is_stored_and_its_import_enqueued(acme_user: Client) -> None:
    job = upload(acme_user)
    assert (job.tenant_queue.tenant, job.state) == ("acme", State.QUEUED)
    assert (Path(settings.MEDIA_ROOT) / job.kwargs.get("path", job.args[-1])).is_file()
    assert Import.objects.get(job_uuid=job.uuid).name == "books.csv"


def test_a_name_with_a_path_stays_in_the_shops_directory(acme_user: Client) -> None:
    assert str(upload(acme_user, "../../evil.csv").args[-1]).startswith("feeds/acme/evil")


def test_a_jobs_page_follows_it_to_its_report(acme_user: Client) -> None:
    job = upload(acme_user)
    page = acme_user.get(f"/jobs/{job.uuid}/").content.decode()
    assert "Import of books.csv" in page
    assert "Next, waiting for a worker" in page
    assert "job.js" in page
    finish(job)
    page = acme_user.get(f"/jobs/{job.uuid}/").content.decode()
    assert "Done" in page
    assert "the row has 6 fields, the header has 12" in page
    assert "job.js" not in page


def test_the_status_tells_the_position_in_the_backlog(acme_user: Client) -> None:
    stop_shop("acme")
    first, second = upload(acme_user), upload(acme_user)
    urgent = import_catalog.using(priority=5).enqueue("acme", path="books.csv")
    positions = [acme_user.get(f"/jobs/{job.uuid}/status/").json()["position"] for job in (first, second, urgent)]
    assert positions == [2, 3, 1]
    assert "Position 2 in the backlog" in acme_user.get(f"/jobs/{first.uuid}/").content.decode()


def test_the_status_and_the_page_tell_the_progress(acme_user: Client) -> None:
    job = upload(acme_user)
    reported = {"progress": {"done": 40, "total": 200}, "stats": {"rows_read": 200, "rows_written": 38}}
    TenantJob.objects.filter(pk=job.pk).update(state=State.RUNNING, **reported)
    status = acme_user.get(f"/jobs/{job.uuid}/status/").json()
    assert {name: status[name] for name in reported} == reported
    assert (status["state"], status["position"], status["ended_at"]) == ("running", None, None)
    page = acme_user.get(f"/jobs/{job.uuid}/").content.decode()
    assert '<progress id="progress" max="200" value="40"></progress>' in page
    assert '<dd data-stat="rows_written">38</dd>' in page


def test_a_failed_job_shows_the_last_line_of_its_error(acme_user: Client) -> None:
    job = upload(acme_user)
    error = "Traceback (most recent call last):\n  File ...\nUnreadableFeed: the file is empty\n"
    TenantJob.objects.filter(pk=job.pk).update(state=State.FAILED, error=error)
    page = acme_user.get(f"/jobs/{job.uuid}/").content.decode()
    assert "UnreadableFeed: the file is empty" in page
    assert "Traceback" not in page


def test_a_waiting_job_can_be_canceled(acme_user: Client) -> None:
    stop_shop("acme")
    job = upload(acme_user)
    assert acme_user.get(f"/jobs/{job.uuid}/cancel/").status_code == 405
    acme_user.post(f"/jobs/{job.uuid}/cancel/")
    job.refresh_from_db()
    assert job.state == State.CANCELED


def test_another_shops_jobs_and_products_do_not_exist(acme_user: Client, other_user: Client) -> None:
    job = upload(acme_user)
    finish(job)
    assert other_user.get(f"/jobs/{job.uuid}/").status_code == 404
    assert other_user.get(f"/jobs/{job.uuid}/status/").status_code == 404
    assert other_user.post(f"/jobs/{job.uuid}/cancel/").status_code == 404
    assert str(job.uuid) not in other_user.get("/").content.decode()
    assert "None yet" in other_user.get("/products/").content.decode()
    assert "198 products" in acme_user.get("/products/").content.decode()


def test_an_account_without_a_shop_is_told_so(db: None) -> None:
    response = signed_in("nobody", None).get("/")
    assert response.status_code == 403
    assert b"belongs to no shop" in response.content


@pytest.mark.parametrize(
    ("content", "most", "message"),
    [(b"", 100, "empty"), (b"x" * 101, 100, "larger than 5 MB")],
)
def test_a_bad_upload_is_refused(
    acme_user: Client, monkeypatch: pytest.MonkeyPatch, content: bytes, most: int, message: str
) -> None:
    monkeypatch.setattr(forms, "MOST_BYTES", most)
    response = acme_user.post("/", {"file": SimpleUploadedFile("a.csv", content)})
    assert response.status_code == 400
    assert message in response.content.decode()
    assert not TenantJob.objects.exists()


def test_pages_hold_no_inline_script_or_style(acme: Shop, acme_user: Client) -> None:
    job = upload(acme_user)
    pages = {path: acme_user.get(path) for path in ("/", "/products/", f"/jobs/{job.uuid}/")}
    pages["/sign-in/"] = Client().get("/sign-in/")
    for path, response in pages.items():
        assert response.status_code == 200, path
        assert not INLINE.search(response.content.decode()), path
        assert "default-src 'self'" in response.headers["Content-Security-Policy"], path
