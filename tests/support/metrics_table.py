"""Loads docs/metrics_table.py: `described()` returns the metrics with their labels, `examples()` returns queries."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_SPEC = importlib.util.spec_from_file_location("metrics_table", Path(__file__).parents[2] / "docs" / "metrics_table.py")
assert _SPEC is not None
assert _SPEC.loader is not None
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)
described, examples = _MODULE.described, _MODULE.examples
