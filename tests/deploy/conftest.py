"""The examples for containers, against the schemas of those who read them: `tox -e deploy` has these."""

from __future__ import annotations

from importlib.util import find_spec

# Without the schemas these tests are not collected: 100 MB that nothing else needs.
collect_ignore_glob = [] if find_spec("check_jsonschema") and find_spec("kubernetes_validate") else ["test_*.py"]
