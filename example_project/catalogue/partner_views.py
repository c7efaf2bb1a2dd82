"""The partner's endpoint."""

from __future__ import annotations

import json

from django.conf import settings
from django.http import HttpRequest, JsonResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from example_project.catalogue import partner


@csrf_exempt  # called by programs, which sign in with a token
@require_POST
def products(request: HttpRequest, tenant: str) -> JsonResponse:
    """Take a batch of products: ``{"products": [{"id": ...}, ...]}``."""
    if not constant_time_compare(request.headers.get("Authorization", ""), f"Bearer {settings.PARTNER_TOKEN}"):
        return JsonResponse({"error": "the token is wrong"}, status=401)
    try:
        received = partner.receive(tenant, json.loads(request.body)["products"])
    except (KeyError, TypeError, ValueError):
        return JsonResponse({"error": "this is not a batch of products"}, status=400)
    return JsonResponse({"received": received})
