"""The shops of the demo and what they enqueue. Every row of the demo belongs to one of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice

from django.contrib.auth import get_user_model
from django.db.models import QuerySet

from example_project.catalogue import feeds
from example_project.catalogue.models import Membership, PartnerProduct, Shop
from example_project.catalogue.uploads import start_imports
from tenant_slots.models import ENDED, HIGHEST_LIMIT, State, TenantJob, TenantQueue
from tenant_slots.repair import lost_runs
from tenant_slots.tenants import tenant_queue_for

QUEUE = "imports"

SMALL_IMPORTS = 4
SECONDS_BETWEEN = 1.2


@dataclass(frozen=True)
class DemoShop:
    slug: str
    name: str
    max_job: int


BIG = DemoShop("demo-megamart", "Megamart", 2)
SMALL = (
    DemoShop("demo-fernhill", "Fernhill Garden", 1),
    DemoShop("demo-radladen", "Rad-Laden", 1),
    DemoShop("demo-nordlys", "Nordlys Coffee", 2),
    DemoShop("demo-halyard", "Halyard Books", 1),
    DemoShop("demo-fjellheim", "Fjellheim Outdoor", 2),
)
SHOPS = (BIG, *SMALL)
SLUGS = [shop.slug for shop in SHOPS]


@dataclass(frozen=True)
class Arrival:
    """Feeds that a shop uploads at a moment of the demo."""

    seconds: float
    shop: DemoShop
    count: int

    def enqueue(self) -> None:
        names = islice(cycle(feed_names()), self.count)
        start_imports(Shop.objects.get(slug=self.shop.slug), [(name, name) for name in names])


def feed_names() -> list[str]:
    return sorted(path.name for path in feeds.SHIPPED.glob("*.csv"))


def arrivals(big_imports: int) -> list[Arrival]:
    """The load, in order of time: the big shop's all at once, the small ones' over a few seconds."""
    return [Arrival(0.0, BIG, big_imports), *sorted(_small_arrivals(), key=lambda arrival: arrival.seconds)]


def _small_arrivals() -> Iterator[Arrival]:
    for place, shop in enumerate(SMALL):
        for number in range(SMALL_IMPORTS):
            yield Arrival(0.5 + number * SECONDS_BETWEEN + place * SECONDS_BETWEEN / len(SMALL), shop, 1)


def make(*, limited: bool) -> None:
    """Fresh shops, with their limits or with none to speak of."""
    clean()
    Shop.objects.bulk_create([Shop(slug=shop.slug, name=shop.name) for shop in SHOPS])
    for shop in SHOPS:
        tenant_queue_for(shop.slug, QUEUE).set_limit(shop.max_job if limited else HIGHEST_LIMIT)


def make_users(admin: str, password: str) -> None:
    """A superuser, and a user for each shop, named by its slug."""
    users = get_user_model()
    users.objects.filter(username__in=[admin, *SLUGS]).delete()
    users.objects.create_superuser(admin, password=password)
    for shop in Shop.objects.filter(slug__in=SLUGS):
        Membership.objects.create(shop=shop, user=users.objects.create_user(shop.slug, password=password))


def free_admin_name() -> str:
    """``admin``, unless the database has a user of that name already."""
    taken = get_user_model().objects.filter(username="admin").exists()
    return "demo-admin" if taken else "admin"


def jobs() -> QuerySet[TenantJob]:
    found: QuerySet[TenantJob] = TenantJob.objects.filter(tenant_queue__tenant__in=SLUGS, tenant_queue__queue=QUEUE)
    return found


def unended() -> QuerySet[TenantJob]:
    return jobs().exclude(state__in=ENDED)


def clean(*users: str) -> None:
    """Remove the demo's rows, and the users of these names, and nothing else. No worker may run."""
    # From the end of each backlog, so that no slot is handed on to a job that is canceled next.
    for job in unended().select_related("tenant_queue").order_by("-pk"):
        if job.state == State.RUNNING:
            lost_runs.end_lost_run(job, "the demo ended", state=State.CANCELED)
        else:
            job.cancel()
    TenantQueue.objects.filter(tenant__in=SLUGS).delete()
    PartnerProduct.objects.filter(tenant__in=SLUGS).delete()
    Shop.objects.filter(slug__in=SLUGS).delete()
    get_user_model().objects.filter(username__in=[*users, *SLUGS]).delete()
