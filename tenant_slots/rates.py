"""How many jobs of a tenant queue may start in a time: a token bucket in one column of its row.

A start takes a token. The bucket holds `burst` tokens and gets one more every ``per / number``. What is stored is
`TenantQueue.rate_empty_at`: when the bucket was empty, in nanoseconds since 1970 by the database's clock. The tokens
that are left follow from it and the clock. One column, written with one look at the clock, because two looks at the
clock would count the time between them twice or not at all. Whole numbers, because sums of fractions drift. The time of
a token is rounded up by less than a nanosecond, so the rate is never exceeded, and missed by nothing to speak of.

**Bound**: in any time T at most ``burst + number * T / per`` tokens are taken, those that are given back in it not
counted. So jobs keep the rate that start soon after their tokens were taken.

Who gates starts needs these four, whose `number`, at least 1, is a number or an expression::

    TenantQueue.objects.filter(rates.allows(number), pk=…).update(current_job=…, **rates.taken(number))
    TenantQueue.objects.filter(pk=…).update(current_job=…, **rates.given_back(number))
    TenantQueue.objects.annotate(left=rates.left())     # whole tokens; NULL where there is no rate
    rates.bucket(row, clock.now()).next_at              # when to come back, if it has no token

A tenant queue without a rate allows everything, and the same UPDATE leaves its `rate_empty_at` empty: nobody has to ask
whether there is one. Who has the locked row at hand should all the same use a statement without these conditions where
its `rate_number` is None: PostgreSQL takes longer to read their text than to do the rest. An UPDATE reads the clock
when it has the row's lock, whoever had the row locked before.

A clock that was set back leaves a time that lies ahead. Up to `SKEW` and a token's time that is let pass, as for a
failover to a server whose clock is a little behind: the bucket is empty until then. Further ahead it is no time, nor is
one before 1970, and the bucket counts as full.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, Protocol

from django.conf import settings
from django.db.models import BigIntegerField, Case, ExpressionWrapper, F, Func, Q, Value, When
from django.db.models.functions import Coalesce, Greatest, Least
from django.db.models.lookups import LessThanOrEqual

from tenant_slots.exceptions import InvalidRate
from tenant_slots.validation import is_whole, shown, type_problem

HIGHEST_NUMBER = 1_000_000
"""Of starts in a period, and of tokens in a bucket; more is a typing error."""

SHORTEST_PERIOD = timedelta(seconds=1)
LONGEST_PERIOD = timedelta(days=366)
"""Also the longest time that a bucket may take to fill; its nanoseconds fit a column with room to spare."""

SKEW = timedelta(seconds=10)
"""How far two database servers' clocks may differ, and how long at most a clock set back by that holds up a rate."""

SETTINGS = ("rate_number", "rate_per", "rate_burst")
"""The fields of a `TenantQueue` that people set."""

EXAMPLE = 'write it as "100/m", "5/s", "10/h", "2/d", or "10/15m" for a period of 15 minutes'

SECOND = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)

UNITS = {"s": SECOND, "m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}

NOTATION = re.compile(
    r"\s*(?P<number>\d{1,9})\s*/\s*(?P<count>\d{1,8}(\.\d{1,6})?)?\s*"
    r"((?P<s>s|sec|secs|seconds?)|(?P<m>m|min|mins|minutes?)|(?P<h>h|hours?)|(?P<d>d|days?))\s*",
    re.ASCII | re.IGNORECASE,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Rate:
    """At most `number` starts `per` time, and up to `burst` at once after a quiet time.

    Raises:
        InvalidRate: a number is out of range, or the bucket would take more than `LONGEST_PERIOD` to fill.
    """

    number: int
    per: timedelta
    burst: int

    def __post_init__(self) -> None:
        if problem := self._problem_of_rate():
            raise InvalidRate(value=f"{shown(self.number)} per {shown(self.per)}", problem=problem)
        if problem := self._problem_of_burst():
            raise InvalidRate(value=f"burst {shown(self.burst)}", problem=problem)

    def __str__(self) -> str:
        return f"{self.notation}, burst {self.burst}"

    @property
    def notation(self) -> str:
        """As `parse` reads it, without the burst."""
        name, unit = next(
            ((name, unit) for name, unit in reversed(UNITS.items()) if not self.per % unit), ("s", SECOND)
        )
        if self.per % unit:
            return f"{self.number}/{self.per.total_seconds():.6f}".rstrip("0") + name
        return f"{self.number}/{self.per // unit if self.per != unit else ''}{name}"

    @property
    def step(self) -> int:
        """Nanoseconds that one token takes."""
        return -(-_nanoseconds(self.per) // self.number)

    def _problem_of_rate(self) -> str:
        if not is_whole(self.number, 1, HIGHEST_NUMBER):
            return f"give a whole number of starts from 1 to {HIGHEST_NUMBER}"
        if type_problem(self.per, timedelta) or not SHORTEST_PERIOD <= self.per <= LONGEST_PERIOD:
            return f"give the period as a timedelta from 1 second to {LONGEST_PERIOD.days} days"
        return ""

    def _problem_of_burst(self) -> str:
        if not is_whole(self.burst, 1, HIGHEST_NUMBER):
            return f"give a whole number from 1 to {HIGHEST_NUMBER}"
        if self.burst * self.step > _nanoseconds(LONGEST_PERIOD):
            return f"at {self.notation} it takes more than {LONGEST_PERIOD.days} days to come back; give a smaller one"
        return ""


@dataclass(frozen=True)
class Bucket:
    """What is left at a moment."""

    tokens: int
    """So many jobs may start at once."""
    next_at: datetime | None
    """When there is one token more; None while the bucket is full."""


class HasRate(Protocol):
    """A `TenantQueue`, or a row of figures about one."""

    @property
    def rate_number(self) -> int | None: ...
    @property
    def rate_per(self) -> timedelta | None: ...
    @property
    def rate_burst(self) -> int | None: ...
    @property
    def rate_empty_at(self) -> int | None: ...


def is_notation(value: object) -> bool:
    """Whether it is meant as a rate, rather than as the path of a callable."""
    return isinstance(value, str) and not all(part.isidentifier() for part in value.split("."))


def new(number: int, per: timedelta, burst: int | None = None) -> Rate:
    """A rate whose burst, where it is not given, is what one second brings, at least 1.

    In the notation of Django REST framework "100/m" means at most 100 in any minute. A bucket that holds 100 lets twice
    as many start in a bad minute. One that holds 2 lets 102 start, and wastes nothing as long as somebody looks for
    free tokens once a second.
    """
    rate = Rate(number, per, 1 if burst is None else burst)
    return replace(rate, burst=max(1, -(-number * SECOND // per))) if burst is None else rate


def parse(value: object, burst: int | None = None) -> Rate:
    """A rate from the notation of Django REST framework's throttles, or a `Rate` as it is.

    "100/s", "100/sec", "100/m", "100/minute", "10/h", "5/d"; also "10/15m" for a period that is no single unit. Other
    than there, "5/month" is refused, where the first letter alone would make it a minute.

    Raises:
        InvalidRate: it is something else.
    """
    if isinstance(value, Rate):
        return value
    found = NOTATION.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise InvalidRate(value=value, problem=EXAMPLE)
    (unit,) = [unit for name, unit in UNITS.items() if found[name]]
    period = math.floor(Fraction(found["count"] or 1) * (unit // MICROSECOND)) * MICROSECOND
    return new(int(found["number"]), period, burst)


def of(row: HasRate) -> Rate | None:
    """The rate of a row; None if it has none.

    What the database has taken is never refused here, where it would end whoever reads the row: SQL from outside can
    write a period with years, which are of another length in Python.
    """
    if row.rate_number is None or row.rate_per is None or row.rate_burst is None:
        return None
    rate = Rate(row.rate_number, min(max(row.rate_per, SHORTEST_PERIOD), LONGEST_PERIOD), 1)
    return replace(rate, burst=min(row.rate_burst, _nanoseconds(LONGEST_PERIOD) // rate.step))


def fields_of(rate: Rate | None) -> dict[str, Any]:
    """The values of `SETTINGS`."""
    values = (None, None, None) if rate is None else (rate.number, rate.per, rate.burst)
    return dict(zip(SETTINGS, values, strict=True))


def bucket(row: HasRate, now: datetime) -> Bucket | None:
    """What is left by the database's clock, `db.clock.now()`; None if the row has no rate."""
    rate = of(row)
    if rate is None:
        return None
    empty_at = _sane(rate, row.rate_empty_at, _since_1970(now))
    passed = _since_1970(now) - empty_at
    tokens = min(rate.burst, max(0, passed // rate.step))
    full = tokens == rate.burst
    return Bucket(tokens, None if full else _moment(empty_at + (tokens + 1) * rate.step))


def carried_over(row: HasRate, new: Rate | None, now: datetime, admitted: int = 0) -> int | None:
    """The `rate_empty_at` of a row whose rate is to be `new`: what was used stays used, as far as it fits the burst.

    Args:
        row, new: as told.
        now: by the database's clock.
        admitted: jobs that are about to start. Where there was no rate they have taken no token, and each that does
            not start gives one back.
    """
    old, moment = of(row), _since_1970(now)
    if new is None:
        return None
    if old is None:
        return moment - max(0, new.burst - admitted) * new.step if admitted else None
    passed = moment - _sane(old, row.rate_empty_at, moment)
    unused = Fraction(min(max(0, passed), old.burst * old.step), old.step)
    still_unused = max(Fraction(0), new.burst - (old.burst - unused))
    return moment - math.floor(still_unused * new.step)


def allows(number: Any) -> Any:
    """Condition: so many tokens, at least 1, are left, or there is no rate."""
    has_come = LessThanOrEqual(_number(_empty_at() + _time_of(number)), NanosecondsNow())
    return Q(rate_number=None) | Q(Q(has_come), rate_burst__gte=number)


def left() -> Any:
    """Expression: how many whole tokens are left, from 0 to the burst; NULL where there is no rate."""
    whole = _number((NanosecondsNow() - _empty_at()) / NanosecondsPerToken())
    return Case(
        When(rate_number=None, then=Value(None)),
        default=Greatest(Value(0), Least(F("rate_burst"), whole), output_field=BigIntegerField()),
        output_field=BigIntegerField(),
    )


def until_token() -> Any:
    """Expression: nanoseconds until the empty bucket has a token, by the clock and the period of the gate itself: SQL
    from outside can write a period with years. Not above 0 where it has one, NULL where there is no rate.
    """
    return _number(_empty_at() + NanosecondsPerToken() - NanosecondsNow())


def most_burst() -> Any:
    """Expression: how large the burst of a row may be, which has a rate."""
    return _nanoseconds(LONGEST_PERIOD) / NanosecondsPerToken()


def taken(number: Any) -> dict[str, Any]:
    """New values for ``update()``: so many tokens fewer. For rows that `allows` has let through in the same UPDATE."""
    since_full = _number(NanosecondsNow() - F("rate_burst") * NanosecondsPerToken())
    return {"rate_empty_at": _number(Greatest(_empty_at(), since_full) + _time_of(number))}


def given_back(number: Any) -> dict[str, Any]:
    """New values for ``update()``: so many tokens more, up to the burst, for jobs that did not start after all."""
    return {"rate_empty_at": _number(_empty_at() - _time_of(number))}


class NanosecondsNow(Func):
    """The database's clock at this moment."""

    output_field = BigIntegerField()

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = "(EXTRACT(EPOCH FROM CLOCK_TIMESTAMP()) * 1000000000)::bigint"
        return self.as_sql(compiler, connection, template=template, **context)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = "(CAST(ROUND((JULIANDAY('NOW') - 2440587.5) * 86400000.0) AS INTEGER) * 1000000)"
        return self.as_sql(compiler, connection, template=template, **context)


class NanosecondsPerToken(Func):
    """`Rate.step` of a row, in SQL."""

    output_field = BigIntegerField()

    def __init__(self) -> None:
        super().__init__(F("rate_per"), F("rate_number"))

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        (per, number), values = self._operands(compiler)
        return f"CEIL(EXTRACT(EPOCH FROM {per}) * 1000000000 / {number})::bigint", values

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        (per, number), values = self._operands(compiler)
        # A duration is a number of microseconds there.
        return f"(({per} * 1000 + {number} - 1) / {number})", (*values, *values[1:])

    def _operands(self, compiler: Any) -> tuple[tuple[str, str], tuple[Any, ...]]:
        """Columns; or, where Django checks a constraint for a form, values."""
        per, number = map(compiler.compile, self.get_source_expressions())
        return (per[0], number[0]), (*per[1], *number[1])


def _empty_at() -> Any:
    """`rate_empty_at`, or 1970 where nothing was taken yet or the time is none: the bucket is full then."""
    furthest = NanosecondsNow() + NanosecondsPerToken() + _nanoseconds(SKEW)
    is_none = Q(rate_empty_at__gt=_number(furthest)) | Q(rate_empty_at__lt=0)
    return Case(When(is_none, then=Value(0)), default=Coalesce(F("rate_empty_at"), 0), output_field=BigIntegerField())


def _time_of(number: Any) -> Any:
    """Of more tokens than a bucket holds it is that of a whole one, which is as good and fits a column.

    NULL where there is no rate.
    """
    return Least(F("rate_burst"), number, output_field=BigIntegerField()) * NanosecondsPerToken()


def _number(expression: Any) -> Any:
    return ExpressionWrapper(expression, output_field=BigIntegerField())


def _sane(rate: Rate, empty_at: int | None, now: int) -> int:
    """`_empty_at` in Python."""
    furthest = now + rate.step + _nanoseconds(SKEW)
    return 0 if empty_at is None or not 0 <= empty_at <= furthest else empty_at


def _nanoseconds(duration: timedelta) -> int:
    return duration // MICROSECOND * 1000


def _since_1970(time: datetime) -> int:
    """A time without a zone is one of this host's, as `db.clock.now()` gives it without ``USE_TZ``."""
    return _nanoseconds(time.astimezone(UTC) - EPOCH)


def _moment(nanoseconds: int) -> datetime:
    """Rounded up, so that there is a token then."""
    time = EPOCH + -(-nanoseconds // 1000) * MICROSECOND
    return time if settings.USE_TZ else time.astimezone().replace(tzinfo=None)
