"""What all benchmarks share: their command line, setting up, and printing the outcome."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks import report, servers
from benchmarks.report import Result
from benchmarks.sides import TenantSlots

WORKER_CLASS = "tenant_slots.workers.TenantWorker"


@dataclass(frozen=True)
class Size:
    """A number that the command line may change."""

    default: float
    help: str
    smoke: float | None = None
    """The value of a short run that only shows that everything works."""


@dataclass(frozen=True)
class Benchmark:
    name: str
    question: str
    sizes: Mapping[str, Size]
    measure: Callable[[Namespace], Result]
    """Its namespace has the sizes and paths, the given `worker_classes`, and `side`: tenant_slots with the first."""
    paths: Mapping[str, str] = field(default_factory=dict)
    """What the command line may name besides, with the help for it; "" where it does not."""


def main(benchmark: Benchmark) -> None:
    """Run one benchmark as a command; exits 1 when it misses a bar."""
    parser = _parser(benchmark.question)
    for name, size in benchmark.sizes.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=type(size.default), help=f"{size.help} (default: {size.default:g})"
        )
    for name, text in benchmark.paths.items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="PATH", default="", help=text)
    options = parser.parse_args()
    environment = set_up()
    finish([run(benchmark, options)], environment, options)


def common_options() -> Namespace:
    """The command line of a script that runs several benchmarks."""
    return _parser("Runs every benchmark in turn.").parse_args()


def run(benchmark: Benchmark, options: Namespace) -> Result:
    print(f"{benchmark.name}: {benchmark.question}", file=sys.stderr)
    values = {name: _value(name, size, options) for name, size in benchmark.sizes.items()}
    paths = {name: getattr(options, name, "") for name in benchmark.paths}
    classes = options.worker_class
    side = TenantSlots(classes[0] if classes else WORKER_CLASS)
    result = benchmark.measure(Namespace(**values, **paths, side=side, worker_classes=classes))
    result.benchmark, result.sizes = benchmark.name, values
    return result


def set_up() -> dict[str, str]:
    """Servers, then Django, then tables. Returns what the figures depend on, as it was before the first load."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that what was started is stopped as well
    servers.ensure()
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"

    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    return report.environment()


def finish(results: list[Result], environment: dict[str, str], options: Namespace) -> None:
    """Print in the chosen form and end this process."""
    if options.json:
        print(report.as_json(results, environment))
    elif options.markdown:
        print(report.as_markdown(results, environment))
    else:
        print(report.as_text(results, environment))
    raise SystemExit(0 if all(result.passed for result in results) else 1)


def _parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=f"{description} Exits 1 when a bar is missed.")
    parser.add_argument("--smoke", action="store_true", help="small sizes; shows that the script works, not how fast")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--markdown", action="store_true", help="print rows for docs/benchmarks.md")
    parser.add_argument(
        "--worker-class",
        nargs="+",
        default=[],
        help=f"the class of the workers that run tenant jobs (default: {WORKER_CLASS}); per_job compares several",
    )
    return parser


def _value(name: str, size: Size, options: Namespace) -> Any:
    given = getattr(options, name, None)
    if given is not None:
        return given
    return size.smoke if options.smoke and size.smoke is not None else size.default
