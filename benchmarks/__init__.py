"""Measurements against plain django-rq on the same servers; see ``docs/benchmarks.md``."""
