"""Django's own Tasks on tenants' slots: what ``tasks_backend.py`` is made of.

A call of a Task becomes a job like any other, which says among its options that it is one. Nothing here is imported
unless the project uses Tasks.
"""
