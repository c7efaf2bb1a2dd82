"""Methods of models as jobs: a row keeps the object's model and key, the worker fetches it anew."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import django_rq
import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import models
from django.test import override_settings

from tenant_slots import exceptions, tenant_job
from tenant_slots.models import TenantJob
from tenant_slots.tasks.registry import resolve
from tests.factories import fresh, in_rq, work
from tests.processes import Workers, wait_until
from tests.reports_app.models import Archive, DetailedReport, DraftReport, Executable, Export, Line, Named, Report

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_call_runs_here_and_now_and_takes_no_slot() -> None:
    report = Report.objects.create(tenant="acme")
    assert report.execute("here") == Report.execute(report, words="here") == "Report here"
    assert not TenantJob.objects.exists()


def test_enqueue_runs_it_in_the_background_on_the_object_as_it_is_then() -> None:
    report = Report.objects.create(tenant="acme")
    job = report.execute.enqueue(words="behind")
    assert (job.task, job.args, job.kwargs) == ("tests.reports_app.models.Executable.execute", [], {"words": "behind"})
    assert (job.object_model, job.object_pk) == ("reports_app.report", str(report.pk))
    Report.objects.update(tenant="other")
    work()
    assert (fresh(job).state, job.result, job.tenant_queue.tenant) == ("finished", "Report behind", "acme")
    assert (fresh(report).done, report.tenant) == ("behind", "other")


def test_all_ways_to_enqueue_are_there_for_an_object_without_self_and_for_the_class_with_it() -> None:
    one, two = Report.objects.create(tenant="acme"), Report.objects.create(tenant="umbrella")
    stored = [
        one.execute.delay("a"),
        *one.execute.enqueue_many([(("b",), {}), one.execute.call(words="c")]),
        one.execute.using(priority=5, tenant="other").enqueue("d"),
        *Report.execute.enqueue_many([((one, "e"), {}), Report.execute.call(two, words="f")]),
        Report.execute.using(key="k").enqueue(two, "g"),
    ]
    work()
    assert [fresh(job).result for job in stored] == [f"Report {letter}" for letter in "abcdefg"]
    tenants = [job.tenant_queue.tenant for job in stored]
    assert tenants == ["acme", "acme", "acme", "other", "acme", "umbrella", "umbrella"]
    assert (stored[3].priority, stored[6].key) == (5, "k")


@pytest.mark.parametrize("model", [Report, DraftReport, Export])
def test_the_row_keeps_the_model_of_the_object_itself(model: type[Executable]) -> None:
    report = model.objects.create(tenant="acme")
    job = report.execute.enqueue()
    work()
    assert (fresh(job).object_model, job.object_pk) == (model._meta.label_lower, str(report.pk))
    assert (job.state, job.result) == ("finished", f"{model.__name__} done")


def test_an_object_whose_key_has_several_parts_is_found_again() -> None:
    line, other = (Line.objects.create(tenant=tenant, number=7) for tenant in ('a"b,\u202ec', "acme"))
    job = line.execute.enqueue("shipped")
    work()
    assert (fresh(job).state, job.object_pk) == ("finished", '["a\\"b,\u202ec", "7"]')
    assert (fresh(line).done, fresh(other).done) == ("shipped", "")
    with pytest.raises(exceptions.InvalidObject, match="not saved"):
        Line(tenant="acme", number=8).execute.enqueue()
    gone = other.execute.enqueue()
    other.delete()
    work()
    assert (fresh(gone).state, "ObjectGone" in gone.error) == ("failed", True)


def test_a_key_of_several_parts_is_refused_while_one_of_them_is_missing() -> None:
    line = Line.objects.create(tenant="acme", number=7)
    line.number = None
    with pytest.raises(exceptions.InvalidObject, match="its key is not complete"):
        line.execute.enqueue()
    assert not TenantJob.objects.exists()


@pytest.mark.parametrize("key", ["", "7", "null", "[]", '["acme"]', '["acme", "x"]', "[" * 200, "1e999"])
@pytest.mark.parametrize("model", ["reports_app.line", "reports_app.report", "reports_app.export"])
def test_a_key_that_the_model_cannot_have_any_more_fails_the_job_by_name(model: str, key: str) -> None:
    """As after a migration that has given the model another kind of key."""
    job = Line.objects.create(tenant="acme", number=7).execute.enqueue()
    TenantJob.objects.update(object_model=model, object_pk=key)
    work()
    assert fresh(job).state == "failed"
    assert f"ObjectGone: {model} {key} does not exist any more" in job.error


def test_an_object_of_a_model_that_inherits_from_one_with_a_uuid_is_found_again() -> None:
    archive = Archive.objects.create(tenant="acme")
    job = archive.execute.enqueue("kept")
    work()
    assert (fresh(job).state, job.object_pk) == ("finished", str(archive.pk))
    assert fresh(archive).done == "kept"


def test_a_method_that_a_subclass_overrides_is_another_job() -> None:
    report = DetailedReport.objects.create(tenant="acme")
    own, base = report.execute.enqueue(), super(DetailedReport, report).execute.enqueue()
    work()
    assert (fresh(own).result, own.task) == ("overridden details", "tests.reports_app.models.DetailedReport.execute")
    assert (fresh(base).result, base.task) == ("DetailedReport done", "tests.reports_app.models.Executable.execute")


def test_tenant_key_and_unique_key_get_the_object() -> None:
    report = Report.objects.create(tenant="acme")
    by_argument = report.send.enqueue("umbrella")
    assert (by_argument.tenant_queue.tenant, by_argument.args) == ("umbrella", ["umbrella"])
    job = report.refresh.enqueue()
    assert job.key == f"report-{report.pk}"
    assert Report.objects.create(tenant="acme").refresh.enqueue() == job
    assert Report.objects.create(tenant="umbrella").refresh.enqueue() != job


def test_the_object_is_part_of_what_makes_jobs_identical() -> None:
    one, two = (Report.objects.create(tenant="acme") for _ in range(2))
    assert one.send.enqueue("acme") == Report.objects.get(pk=one.pk).send.enqueue(tenant="acme", copies=1)
    assert one.send.enqueue("acme") != two.send.enqueue("acme")


def test_an_object_that_was_deleted_meanwhile_fails_the_job_by_name() -> None:
    report = Report.objects.create(tenant="acme")
    job, pk = report.execute.enqueue(), report.pk
    report.delete()
    work()
    assert fresh(job).state == "failed"
    assert f"ObjectGone: reports_app.report {pk} does not exist any more" in job.error


def test_an_object_that_is_not_saved_is_refused_and_nothing_is_stored() -> None:
    deleted = Report.objects.create(tenant="acme")
    deleted.delete()
    for report in (Report(tenant="acme"), Export(tenant="acme"), deleted):
        with pytest.raises(exceptions.InvalidObject, match=r"for this reports_app\.\w+: it is not saved"):
            report.execute.enqueue()
    assert not TenantJob.objects.exists()


def test_a_key_that_does_not_fit_is_refused() -> None:
    with pytest.raises(exceptions.InvalidObject, match="more than 255 characters"):
        Named.objects.create(tenant="acme", name="n" * 256).execute.enqueue()
    job = Named.objects.create(tenant="acme", name="ü 1").execute.enqueue()
    work()
    assert fresh(job).state == "finished"


@pytest.mark.parametrize("args", [(), ("a report",), (7,)])
def test_through_the_class_the_object_comes_first(args: Any) -> None:
    with pytest.raises(TypeError, match="needs a Executable as its first argument"):
        Report.execute.enqueue(*args)
    with pytest.raises(TypeError, match="needs a Report"):
        Report.send.enqueue(Export.objects.create(tenant="acme"), "acme")


def test_arguments_are_checked_and_named_as_those_of_functions() -> None:
    report = Report.objects.create(tenant="acme")
    with pytest.raises(exceptions.ArgumentNotJSON, match="'words'"):
        report.execute.enqueue({1})
    with pytest.raises(TypeError, match="unexpected"):
        report.execute.enqueue(unexpected=1)


@pytest.mark.parametrize("model", ["auth.user", "reports_app.nothing", "nowhere", "reports_app.executable", ""])
def test_a_forged_row_cannot_name_a_model_without_the_method(model: str) -> None:
    job = Report.objects.create(tenant="acme").execute.enqueue()
    TenantJob.objects.update(object_model=model)
    with override_settings(TENANT_SLOTS={"UNKNOWN_TASK_WAIT": 0}):
        work()
    assert fresh(job).state == "failed"
    assert "UnknownJob" in job.error


@pytest.mark.parametrize("method", ["delete", "save", "__str__", "_meta.get_fields", "objects.all"])
def test_a_forged_row_cannot_name_a_method_that_is_not_decorated(method: str) -> None:
    report = Report.objects.create(tenant="acme")
    job = report.execute.enqueue()
    for path in (f"tests.reports_app.models.Report.{method}", f"django.db.models.Model.{method}"):
        with pytest.raises(exceptions.UnknownJob):
            resolve(path)
    TenantJob.objects.update(task=f"tests.reports_app.models.Report.{method}")
    with override_settings(TENANT_SLOTS={"UNKNOWN_TASK_WAIT": 0}):
        work()
    assert fresh(job).state == "failed"
    assert "UnknownJob" in job.error
    assert Report.objects.count() == 1


@pytest.mark.parametrize(
    "owner", [lambda: Report.objects.create(tenant="acme"), lambda: Report], ids=["bound", "class"]
)
def test_plain_rq_is_refused_a_method_that_it_would_pickle(owner: Any) -> None:
    method = owner().execute
    with pytest.raises(exceptions.MethodNotPicklable, match=r"its own \.enqueue\(\)"):
        django_rq.get_queue("reports").enqueue(method)
    with pytest.raises(exceptions.MethodNotPicklable):
        pickle.dumps(method)
    assert in_rq("reports") == 0


def test_plain_rq_that_calls_a_method_by_its_name_takes_a_slot() -> None:
    report = Report.objects.create(tenant="acme")
    django_rq.get_queue("reports").enqueue("tests.reports_app.models.Report.execute", report)
    work()
    assert (fresh(report).done, TenantJob.objects.get().tenant_queue.tenant) == ("done", "acme")


def test_a_method_of_a_class_that_is_not_a_model_is_refused_when_the_class_is_created() -> None:
    def plain(self: Any, tenant: str) -> None: ...

    plain.__qualname__ = "Plain.method"
    method = tenant_job("reports", tenant="tenant")(plain)
    with pytest.raises((exceptions.ImproperJob, RuntimeError)) as caught:
        type("Plain", (), {"method": method})
    # Python 3.11 wraps what __set_name__ raises.
    error = caught.value if isinstance(caught.value, exceptions.ImproperJob) else caught.value.__cause__
    assert "Plain is not a Django model" in str(error)


def test_a_method_that_is_decorated_outside_of_its_class_is_refused_at_its_first_use(monkeypatch: Any) -> None:
    def late(self: Any, tenant: str) -> None: ...

    late.__qualname__ = "Report.late"
    monkeypatch.setattr(Report, "late", tenant_job("reports", tenant="tenant")(late), raising=False)
    with pytest.raises(exceptions.ImproperJob, match="not decorated in the body of a model"):
        Report.objects.create(tenant="acme").late.enqueue("acme")


def test_a_decorated_method_looks_like_the_method() -> None:
    for method in (Report.execute, Report().execute):
        assert (method.__name__, method.__doc__) == ("execute", "Says what it did.")
    assert list(inspect.signature(Report.execute).parameters) == ["self", "words"]
    assert Report.execute.tenant_task.path == "tests.reports_app.models.Executable.execute"


def test_a_model_with_jobs_needs_no_migration_and_keeps_its_fields() -> None:
    call_command("check", "reports_app")
    assert issubclass(apps.get_model("reports_app.report"), models.Model)
    assert [field.name for field in Report._meta.concrete_fields] == ["id", "tenant", "done"]


def test_a_real_worker_fetches_the_object_and_calls_its_method(workers: Workers) -> None:
    export, report = Export.objects.create(tenant="acme"), Report.objects.create(tenant="acme")
    jobs = [export.execute.enqueue("far away"), report.execute_async.enqueue("and async")]
    workers.start(queues=("reports",))
    wait_until(lambda: all(fresh(job).has_ended for job in jobs))
    assert [job.result for job in jobs] == ["Export far away", "and async"]
    assert (fresh(export).done, fresh(report).done) == ("far away", "and async")


def test_another_decorators_ways_to_enqueue_do_not_hide_ours() -> None:
    def late(self: Report, tenant: str) -> str:
        return tenant

    late.delay = late.enqueue = late.tenant_task = None  # type: ignore[attr-defined]
    late.__qualname__ = "Report.late"
    method: Any = tenant_job("reports", tenant="tenant")(late)
    assert method.tenant_task.path.endswith("Report.late")
    assert method.delay.__self__ is method.enqueue.__self__ is method


def test_what_using_returns_can_be_called_as_the_method_itself() -> None:
    report = Report.objects.create(tenant="acme")
    assert report.execute.using(priority=3)("there and then") == "Report there and then"
