"""In which order a worker looks into its queues when some of them have a weight."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from rq.queue import Queue


def drawn(queues: Sequence[Queue], weights: Mapping[str, float]) -> list[Queue]:
    """Those without a weight in their order, then those with one, drawn without replacement.

    A queue is drawn first with the probability weight / sum of weights. This is the method of Efraimidis and Spirakis
    ("Weighted random sampling with a reservoir", 2006): sort by ``random ** (1 / weight)``, highest first. Minus the
    logarithm of that is an exponential variate, lowest first, which does not underflow when a weight is tiny.
    """
    strict = [queue for queue in queues if queue.name not in weights]
    weighted = [queue for queue in queues if queue.name in weights]
    return strict + sorted(weighted, key=lambda queue: random.expovariate(weights[queue.name]))
