"""A project on django-tenants: every tenant has a schema of its own."""
