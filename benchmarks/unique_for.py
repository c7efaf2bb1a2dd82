"""Do identical jobs stay single, without an error for anybody, while many processes enqueue and end them?"""

from __future__ import annotations

import random
import time
from argparse import Namespace
from collections import Counter
from contextlib import nullcontext

from benchmarks.harness import Benchmark, Size, main
from benchmarks.many_processes import at_once
from benchmarks.phase import phase
from benchmarks.report import Bar, Result

TENANT = "tenant"

COUNTED = ("calls", "jobs", "looks", "most")
"""What a process counts beside its errors, which are under their names."""


def measure(options: Namespace) -> Result:
    with phase(options.side) as current:
        current.side.set_limits({TENANT: 0})
        arguments = (options.keys, options.seconds)
        did = sum(at_once(options.processes + 1, _churn_or_look, *arguments, seconds=options.seconds), Counter())
        stored = _stored()
    errors = {name: number for name, number in did.items() if name not in COUNTED}
    return Result(
        [
            Bar("errors of enqueue_many", sum(errors.values()), "==", 0),
            Bar("identical jobs under way at a time, at most", did["most"], "==", 1),
        ],
        {
            "calls": f"{did['calls']:,}, for {did['jobs']:,} jobs, of which {stored:,} were stored",
            "looks for two of a kind": did["looks"],
            "errors by kind": ", ".join(f"{name} {number}" for name, number in errors.items()) or "none",
        },
    )


def _churn_or_look(number: int, keys: int, seconds: float) -> Counter[str]:
    end = time.monotonic() + seconds
    return _churn(random.Random(number), keys, end) if number else _look(end)


def _churn(chance: random.Random, keys: int, end: float) -> Counter[str]:
    """Enqueue some jobs in any order, every second time in a transaction, and end one of them; and so on."""
    from django.db import transaction

    from benchmarks import jobs

    did: Counter[str] = Counter()
    while time.monotonic() < end:
        names = [f"key{one}" for one in chance.sample(range(keys), chance.randint(1, keys))]
        try:
            with transaction.atomic() if did["calls"] % 2 else nullcontext():
                got = jobs.once.enqueue_many([((TENANT, name), {}) for name in names])
        except Exception as error:
            did[type(error).__name__] += 1
        else:
            did["jobs"] += len(got)
            chance.choice(got).cancel()
        did["calls"] += 1
    return did


def _look(end: float) -> Counter[str]:
    """How many jobs of a kind are under way at a time."""
    from django.db.models import Count

    from tenant_slots.models import TenantJob

    by_kind = TenantJob.objects.not_ended().values("key").annotate(jobs=Count("pk")).order_by("-jobs")
    seen: Counter[str] = Counter()
    while time.monotonic() < end:
        for kind in by_kind[:1]:
            seen["most"] = max(seen["most"], kind["jobs"])
        seen["looks"] += 1
        time.sleep(0.02)
    return seen


def _stored() -> int:
    from tenant_slots.models import TenantJob

    return TenantJob.objects.count()


BENCHMARK = Benchmark(
    name="unique_for",
    question="Do identical jobs stay single, without an error, while many processes enqueue and end them?",
    sizes={
        "processes": Size(50, "processes that enqueue", smoke=4),
        "keys": Size(30, "different jobs", smoke=5),
        "seconds": Size(60.0, "for which they do so", smoke=2.0),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
