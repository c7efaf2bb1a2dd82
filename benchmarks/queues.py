"""The queues of a measurement, known before Django is set up. Each benchmark uses `bench` unless it is about queues."""

WEIGHTS = {"bench_fast": 6, "bench_throttled": 3, "bench_slow": 1}
