"""Workers, sweeps and people let loose on each other, where a seed decides who goes on at each request to a server.

What a seed has done once it does again, as far as two servers do. A test that fails shows its number, what is wrong,
and all that was asked of the servers, in its order. Play that seed alone, or many others::

    FUZZ_FROM=1234 FUZZ_SEEDS=1 python -m pytest -p no:xdist tests/fuzz
    FUZZ_FROM=5000 FUZZ_SEEDS=500 python -m pytest -p no:xdist tests/fuzz

``baton.py`` lets one thread go on at a time, ``points.py`` says where it may stand still, ``actors.py`` has workers and
sweeps, and ``game.py`` one seed from its beginning to its end. The others are people, with what they expect.
"""
