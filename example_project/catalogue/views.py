"""The pages of a shop. Everything on them is looked up through the shop of the user who is signed in."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from example_project.catalogue import job_status, uploads
from example_project.catalogue.forms import FeedForm
from example_project.catalogue.models import Shop
from tenant_slots import stats

P = ParamSpec("P")


def for_shop(view: Callable[Concatenate[HttpRequest, Shop, P], HttpResponse]) -> Callable[..., HttpResponse]:
    """Gives a view the shop of its user."""

    @wraps(view)
    def with_shop(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        shop = Shop.objects.filter(memberships__user=request.user.pk).first()
        if shop is None:
            return render(request, "catalogue/no_shop.html", status=403)
        return view(request, shop, *args, **kwargs)

    return never_cache(login_required(with_shop))


@require_http_methods(["GET", "HEAD", "POST"])
@for_shop
def home(request: HttpRequest, shop: Shop) -> HttpResponse:
    """Upload a feed, and see the recent jobs."""
    form = FeedForm(request.POST or None, request.FILES or None) if request.method == "POST" else FeedForm()
    if form.is_bound and form.is_valid():
        job = uploads.upload(shop, form.cleaned_data["file"])
        return redirect("catalogue:job", uuid=job.uuid)
    context = {"shop": shop, "form": form, "jobs": job_status.recent(shop)}
    return render(request, "catalogue/home.html", context, status=400 if form.errors else 200)


@require_GET
@for_shop
def products(request: HttpRequest, shop: Shop) -> HttpResponse:
    page = Paginator(shop.products.order_by("title", "pk"), 50).get_page(request.GET.get("page"))
    return render(request, "catalogue/products.html", {"shop": shop, "page": page})


@require_GET
@for_shop
def job(request: HttpRequest, shop: Shop, uuid: UUID) -> HttpResponse:
    """One job: waiting, running or done."""
    row = get_object_or_404(job_status.jobs_of(shop), uuid=uuid)
    context = {
        "shop": shop,
        "job": row,
        "shown": job_status.shown(row),
        "position": stats.position_in_backlog(row),
        "labels": json.dumps(job_status.LABELS),
    }
    return render(request, "catalogue/job.html", context)


@require_POST
@for_shop
def cancel(request: HttpRequest, shop: Shop, uuid: UUID) -> HttpResponse:
    get_object_or_404(job_status.jobs_of(shop), uuid=uuid).cancel()
    return redirect("catalogue:job", uuid=uuid)
