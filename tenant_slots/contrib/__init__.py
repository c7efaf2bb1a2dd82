"""Ready-made contexts of jobs for ``CAPTURE_CONTEXT`` and ``JOB_CONTEXT``: Django's language and time zone, and the
schema of django-tenants; the trace of OpenTelemetry and of Sentry. And metrics, for Prometheus.
"""
