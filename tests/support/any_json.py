"""Strategies for JSON that users may send: any values, and objects with parts that are replaced by any values."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from provisioner import constants

_KEYS = (
    *("apiVersion", "kind", "metadata", "name", "namespace", "labels", "annotations", "ownerReferences"),
    *("spec", "replicatedJobs", "replicas", "leaderWorkerTemplate", "size", "template", "parallelism"),
    *("nodeSelector", "tolerations", "affinity", "containers", "resources", "limits", "env", "value", "valueFrom"),
    *(constants.TPU_RESOURCE, constants.TPU_TOPOLOGY, constants.CAPACITY),
)
_TEXTS = (
    "JobSet",
    "Job",
    "Pod",
    "v1",
    "batch/v1",
    "4",
    "2x2x2",
    "-1",
    "us-central2-b",
    "a-b1-c",
    "true",
    "*",
    "\x00",
    "enabled",
    "localhost",
)
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(_TEXTS)
    | st.text(max_size=6)
)
ANY_JSON = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=15,
)


def spoilt(data: st.DataObject, value: Any) -> Any:
    """Return a copy of a value in which up to three parts are replaced by any JSON."""
    for _ in range(data.draw(st.integers(0, 3))):
        value = _with_another_part(data, value)
    return value


def _with_another_part(data: st.DataObject, value: Any) -> Any:
    if not isinstance(value, (dict, list)) or not value:
        return value
    place = data.draw(st.sampled_from(list(value) if isinstance(value, dict) else range(len(value))))
    part = value[place]
    changed: Any = dict(value) if isinstance(value, dict) else list(value)
    deeper = isinstance(part, (dict, list)) and part and data.draw(st.integers(0, 7))
    changed[place] = _with_another_part(data, part) if deeper else data.draw(ANY_JSON)
    return changed
