"""What the background job has at hand: one chunk, and whose change it is. Each step of it is one transaction."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.db import DatabaseError, transaction

from tenant_slots.admin.bulk.chunks import Chunk, Part
from tenant_slots.admin.bulk.commission import Commission
from tenant_slots.admin.confirmed import FAILED, GONE
from tenant_slots.admin.refusals import fails_alone, problem
from tenant_slots.conf import app_settings
from tenant_slots.db.compiled import among
from tenant_slots.exceptions import BulkChangeOvertaken, TenantSlotsError
from tenant_slots.locks import locked
from tenant_slots.models import TenantQueue


@dataclass
class Step:
    """What comes of the rows of one transaction."""

    left: Part
    row: TenantQueue | None = None
    """The tenant queue that the transaction holds."""
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


class Work:
    def __init__(self, commission: Commission, chunk: Chunk) -> None:
        self.chunk = chunk
        self._left_at_start = chunk.parts
        self.commission = commission
        self.model_admin, self.request = commission.model_admin, commission.request
        self.values, self.by, self.reason = commission.values, commission.by, commission.reason

    @contextmanager
    def step(self, holding: int = 0) -> Iterator[Step]:
        """A transaction. What comes of its rows, and what is left of the part, is stored with it.

        Args:
            holding: the tenant queue that it is to hold, if any.

        Raises:
            BulkChangeOvertaken: another run of the job does it.
            TenantQueue.DoesNotExist, TenantQueueLocked: as `locked`.
        """
        with locked(holding) if holding else transaction.atomic(using=app_settings.DATABASE) as row:
            step = Step(self.chunk.part, row)
            yield step
            after = self.chunk.after(step.left, step.outcomes, step.problems)
            after.store(self.chunk)
        self.chunk = after

    def tried(
        self,
        change: Callable[[Step], None],
        left: Part,
        name: str = "",
        holding: int = 0,
        refused: Callable[[Step, Exception], bool] | None = None,
    ) -> None:
        """A step that may fail: what it was about then has failed, and why is kept.

        Args:
            change: what is done in it.
            left: of the part afterwards, unless `change` says otherwise.
            name: what it is about, where that is not the tenant queue that it holds.
            holding: as of `step`.
            refused: is asked in the step that keeps the failure, and returns whether there is none, because it has
                left the rows to be tried in another way.
        """
        gone = len(self.chunk.part.pks) - len(left.pks)
        try:
            with self.step(holding) as step:
                step.left = left
                change(step)
        except BulkChangeOvertaken:
            raise
        except TenantQueue.DoesNotExist:
            with self.step() as step:
                step.left = left
                step.outcomes[GONE] = gone
        except (TenantSlotsError, DatabaseError) as error:
            if not fails_alone(error):
                raise
            with self.step() as step:
                step.left = left
                if refused is None or not refused(step, error):
                    step.outcomes[FAILED] = gone
                    step.problems.append(problem(name or _name_of(holding), error))

    @functools.cached_property
    def visible_at_start(self) -> set[int]:
        """As `visible`, of all that was left of the chunk when it was begun."""
        return self.visible([pk for part in self._left_at_start for pk in part.pks])

    def visible(self, pks: Sequence[int]) -> set[int]:
        """Those of them that whoever has confirmed it may see."""
        own = self.model_admin.get_queryset(self.request).filter(among(pks))
        return set(own.order_by().values_list("pk", flat=True))

    def objects(self, pks: Sequence[int]) -> dict[int, Any]:
        """Those of them, as the list reads them."""
        related = self.model_admin.list_select_related
        found = self.model_admin.get_queryset(self.request).filter(among(pks))
        rows = found.select_related(*related) if isinstance(related, list | tuple) else found
        return {row.pk: row for row in rows}


def _name_of(tenant_queue: int) -> str:
    """For whoever reads why something has failed: a primary key tells nobody anything."""
    return str(TenantQueue.objects.filter(pk=tenant_queue).first() or tenant_queue)
