"""The header that keeps the shop's pages free of inline script and style."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

POLICY = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'self'; frame-ancestors 'none'"

OTHERS = ("/django-rq/", "/admin/django_rq/")
"""django-rq 4.2 styles its pages inline."""


def content_security_policy(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        if not request.path.startswith(OTHERS):
            response.headers.setdefault("Content-Security-Policy", POLICY)
        return response

    return middleware
