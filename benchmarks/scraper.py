"""Asks for the metrics each second, as Prometheus would: ``python -m benchmarks.scraper``"""

from __future__ import annotations

import time

import django


def scrape_each_second() -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    from tenant_slots.contrib.prometheus import TenantSlotsCollector

    registry = CollectorRegistry(auto_describe=False)
    registry.register(TenantSlotsCollector())
    while True:
        generate_latest(registry)
        print("scraped", flush=True)
        time.sleep(1)


if __name__ == "__main__":
    django.setup()
    scrape_each_second()
