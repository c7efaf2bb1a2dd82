"""Room in each page for the updates of its rows, which PostgreSQL then makes without a new entry in any index.

A heartbeat and a change of a counter write such columns only. The tables are small and change all the time, so dead rows
are to be cleared away sooner than after a fifth of the table. Takes a lock that no query of ours waits for.
"""

from __future__ import annotations

from typing import Any

from django.db import migrations

STORAGE = {
    "tenant_slots_tenantjob": {"fillfactor": 80, "autovacuum_vacuum_scale_factor": 0.05},
    "tenant_slots_tenantqueue": {"fillfactor": 50, "autovacuum_vacuum_scale_factor": 0.05},
}


def make_room(apps: Any, schema_editor: Any) -> None:
    for table, values in _tables(schema_editor):
        settings = ", ".join(f"{name} = {value}" for name, value in values.items())
        schema_editor.execute(f"ALTER TABLE {table} SET ({settings})")


def reset(apps: Any, schema_editor: Any) -> None:
    for table, values in _tables(schema_editor):
        schema_editor.execute(f"ALTER TABLE {table} RESET ({', '.join(values)})")


def _tables(schema_editor: Any) -> list[tuple[str, dict[str, float]]]:
    if schema_editor.connection.vendor != "postgresql":
        return []
    return [(schema_editor.quote_name(table), values) for table, values in STORAGE.items()]


class Migration(migrations.Migration):
    dependencies = [("tenant_slots", "0001_initial")]

    operations = [migrations.RunPython(make_room, reset)]
