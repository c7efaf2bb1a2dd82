"""What is left to do of a chunk of a bulk change, and what came of the rest: read and written with each step."""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from django.db.models import F, IntegerField

from tenant_slots.admin import chosen
from tenant_slots.db.compiled import Parameter, Statement, fields_of
from tenant_slots.db.consequences import Consequence, HasChanged, updated_then
from tenant_slots.exceptions import BulkChangeOvertaken
from tenant_slots.models import BulkChunk

QUEUES_PER_CHUNK = 100
"""Tenant queues whose changes become safe on the disk together."""

QUEUES_WITH_JOBS_PER_CHUNK = 25
"""Tenant queues that are written, with those of their jobs that are left, at each step of one of them."""

JOBS_PER_CHUNK = 1000
"""Most jobs that are changed in one transaction, so that their tenant queue is not locked for long."""

PROBLEMS_KEPT = 10
"""Of each chunk, and of the whole change."""


@dataclass(frozen=True)
class Part:
    """Rows of a chunk: tenant queues, or jobs of one tenant queue."""

    pks: tuple[int, ...]
    """Ascending."""
    versions: tuple[int, ...] = ()
    """Of the tenant queues, as the page showed them; 0 and above."""
    tenant_queue: int = 0
    """Of the jobs."""
    one_by_one: bool = False
    """What could be changed together has been."""
    counted: int = 0
    """Jobs of the first tenant queue that were changed so far."""
    last: int = 0
    """The last of these."""
    jobs: str = ""
    """Of the one tenant queue that such a part has, as `chosen` writes them: those that the page has shown."""

    @property
    def shown(self) -> dict[int, int]:
        """The versions of the tenant queues by their primary keys; none where the page has shown none."""
        return dict(zip(self.pks, self.versions, strict=bool(self.versions)))

    def only(self, pks: Sequence[int]) -> Part:
        """With these of its rows, in their order."""
        shown = self.shown
        return replace(self, pks=tuple(pks), versions=tuple(shown[pk] for pk in pks) if shown else ())

    def without_first(self) -> Part:
        return replace(self, pks=self.pks[1:], versions=self.versions[1:], counted=0, last=0, jobs="")

    def next_jobs(self, number: int) -> list[int]:
        """As many at most, of those after the last."""
        jobs = _jobs(self.jobs)
        start = bisect_right(jobs, self.last)
        return jobs[start : start + number]

    def as_json(self) -> dict[str, Any]:
        return {
            "pks": chosen.as_text(self.pks),
            "versions": " ".join(map(str, self.versions)),
            "of": self.tenant_queue,
            "one_by_one": self.one_by_one,
            "counted": self.counted,
            "last": self.last,
            "jobs": self.jobs,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Part:
        return cls(
            tuple(chosen.from_text(stored["pks"])),
            tuple(map(int, stored["versions"].split())),
            stored["of"],
            stored["one_by_one"],
            stored["counted"],
            stored["last"],
            stored["jobs"],
        )


@functools.lru_cache(maxsize=1)
def _jobs(text: str) -> list[int]:
    """Read once for all steps of a tenant queue."""
    return chosen.from_text(text)


@dataclass(frozen=True)
class Chunk:
    """As it is stored."""

    pk: int
    step: int
    parts: tuple[Part, ...]
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: tuple[str, ...] = ()

    @classmethod
    def of(cls, row: BulkChunk) -> Chunk:
        parts = tuple(map(Part.from_json, row.left))
        return cls(row.pk, row.step, parts, Counter(row.outcomes), tuple(row.problems))

    @property
    def part(self) -> Part:
        """The one that is next."""
        return self.parts[0]

    def after(self, left: Part, outcomes: Mapping[str, int], problems: Sequence[str] = ()) -> Chunk:
        """With so many outcomes more, and with what is left of the part that was next."""
        parts = (left, *self.parts[1:]) if left.pks else self.parts[1:]
        kept = (*self.problems, *problems)[:PROBLEMS_KEPT]
        return Chunk(self.pk, self.step + 1, parts, self.outcomes + Counter(outcomes), kept)

    def store(self, before: Chunk) -> None:
        """In the transaction of what was done.

        Raises:
            BulkChangeOvertaken: another run of the job goes on with this chunk.
        """
        if not BulkChunk.objects.filter(pk=self.pk, step=before.step).update(step=self.step, **self._values()):
            raise BulkChangeOvertaken(chunk=self.pk)

    def stored_then(self, before: Chunk) -> Consequence:
        """As `store`, as the consequence of an UPDATE that asks for the step by itself."""
        return updated_then(MOVED, pk=self.pk, step=before.step, **self._values())

    def _values(self) -> dict[str, Any]:
        left = [part.as_json() for part in self.parts]
        return {"left": left, "outcomes": dict(self.outcomes), "problems": list(self.problems)}


MOVED = Statement(
    lambda: BulkChunk.objects.filter(
        HasChanged(), pk=Parameter("pk", IntegerField()), step=Parameter("step", IntegerField())
    ),
    {**fields_of(BulkChunk, ["left", "outcomes", "problems"]), "step": F("step") + 1},
)


def of_queues(pks: Sequence[int], versions: Mapping[int, int]) -> Iterator[list[Part]]:
    """The parts of each chunk, for tenant queues; versions of those whose page has shown them."""
    ordered = sorted(pks)
    for start in range(0, len(ordered), QUEUES_PER_CHUNK):
        some = tuple(ordered[start : start + QUEUES_PER_CHUNK])
        yield [Part(some, tuple(versions[pk] for pk in some) if versions.keys() >= set(some) else ())]


def of_queues_with_jobs(pks: Sequence[int], jobs: Mapping[int, Sequence[int]]) -> Iterator[list[Part]]:
    """The parts of each chunk, for tenant queues whose jobs are concerned, by primary key of the tenant queue."""
    parts = [Part((pk,), jobs=chosen.as_text(jobs.get(pk, ()))) for pk in sorted(pks)]
    for start in range(0, len(parts), QUEUES_WITH_JOBS_PER_CHUNK):
        yield parts[start : start + QUEUES_WITH_JOBS_PER_CHUNK]


def of_jobs(tenant_queues: Mapping[int, int], rounds: Mapping[int, int]) -> Iterator[list[Part]]:
    """The parts of each chunk, for jobs by primary key with their tenant queues: those of a tenant queue together.

    Those of a later round come after all of those before it; round 0 is that of jobs that have none.
    """

    def place(pk: int) -> tuple[int, int]:
        return rounds.get(pk, 0), tenant_queues[pk]

    ordered = sorted(tenant_queues, key=lambda pk: (place(pk), pk))
    for start in range(0, len(ordered), JOBS_PER_CHUNK):
        parts = groupby(ordered[start : start + JOBS_PER_CHUNK], place)
        yield [Part(tuple(own), tenant_queue=queue) for (_, queue), own in parts]
