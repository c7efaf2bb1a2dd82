"""The admin pages. Plain ModelAdmins, so that a project or a theme can subclass and register them again.

`queues` and `jobs` declare the two; each concern of theirs has a file. Of the lists: `lists`, `lookups`, `filters`,
`columns`, `cells`, `plans`, `live` with `snapshots` and `charts`. Of a tenant queue's page: `change_form`, `limits`,
`detail`, `queue_charts`, `deletion`. Of a job's page: `job_page`, `job_fields`, `timeline`, `arguments`, `errors`,
`progress`, `reasons`. Of all tenants together: `overview` with `overview_charts` and `attention`, `workers`,
`failures`, `run_times`. Of all: `permissions`, `actions` with `queue_actions`, `jobs_of_queues` and `job_actions`,
`export`, `audit`, `history`. They share `bases`, `forms`, `changes`, `pages` and `words`. What the pages show is
measured in `tenant_slots.stats`.
"""

from __future__ import annotations

from django.contrib import admin

from tenant_slots.admin.jobs import TenantJobAdmin
from tenant_slots.admin.queues import TenantQueueAdmin
from tenant_slots.models import TenantJob, TenantQueue

__all__ = ["TenantJobAdmin", "TenantQueueAdmin"]

admin.site.register(TenantQueue, TenantQueueAdmin)
admin.site.register(TenantJob, TenantJobAdmin)
