"""Fields of a wrong type, fields that do not exist but look like ones that are read, and keys that nobody reads.

The API server rejects the first two. The decision itself counts a field of a wrong type as absent, so that it would say
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from provisioner import constants
from provisioner.kube import fields
from provisioner.model import bounds
from provisioner.slices.offline.documents import Path, dotted

#: How like a known field an unknown one is that was meant to be it.
_LIKE = 0.85
#: Longer keys are no typing errors, and objects with more keys no objects that somebody wrote.
_MOST_CHARACTERS = 40
_MOST_KEYS = 100
_MOST_DIGITS = 10
#: Of one object.
_MOST_COMPARISONS = 1000
#: Of one object.
MOST_PROBLEMS = 100


class _Scalar(NamedTuple):
    """A value that is no container."""

    words: str
    types: tuple[type, ...]


class _ListOf(NamedTuple):
    """A list."""

    item: _Shape


class _MapOf(NamedTuple):
    """An object with any keys."""

    value: _Shape


_Shape = _Scalar | _ListOf | _MapOf | dict[str, Any]
TEXT = _Scalar("a text", (str,))
COUNT = _Scalar("a whole number", (int,))
FLAG = _Scalar("true or false", (bool,))
AMOUNT = _Scalar('an amount such as 4, "1500m" or "2Gi"', (str, int, float))

_METADATA: _Shape = {
    "name": TEXT,
    "generateName": TEXT,
    "namespace": TEXT,
    "labels": _MapOf(TEXT),
    "annotations": _MapOf(TEXT),
}
_RESOURCES: _Shape = {"requests": _MapOf(AMOUNT), "limits": _MapOf(AMOUNT)}
_CONTAINER: _Shape = {"name": TEXT, "image": TEXT, "restartPolicy": TEXT, "resources": _RESOURCES}
_EXPRESSIONS = _ListOf({"key": TEXT, "operator": TEXT, "values": _ListOf(TEXT)})
_TERMS = _ListOf({"matchExpressions": _EXPRESSIONS, "matchFields": _EXPRESSIONS})
_POD_SPEC: _Shape = {
    "nodeSelector": _MapOf(TEXT),
    "tolerations": _ListOf(
        {"key": TEXT, "operator": TEXT, "value": TEXT, "effect": TEXT, "tolerationSeconds": COUNT},
    ),
    "affinity": {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": _TERMS}},
    },
    "containers": _ListOf(_CONTAINER),
    "initContainers": _ListOf(_CONTAINER),
    "resources": _RESOURCES,
    "overhead": _MapOf(AMOUNT),
    "restartPolicy": TEXT,
}
_TEMPLATE: _Shape = {"metadata": _METADATA, "spec": _POD_SPEC}
_JOB_SPEC: _Shape = {
    "parallelism": COUNT,
    "completions": COUNT,
    "completionMode": TEXT,
    "backoffLimit": COUNT,
    "suspend": FLAG,
    "managedBy": TEXT,
    "template": _TEMPLATE,
}
#: By the kind of the object.
SCHEMAS: dict[str, _Shape] = {
    "JobSet": {
        "metadata": _METADATA,
        "spec": {
            "suspend": FLAG,
            "managedBy": TEXT,
            "replicatedJobs": _ListOf(
                {
                    "name": TEXT,
                    "groupName": TEXT,
                    "replicas": COUNT,
                    "template": {"metadata": _METADATA, "spec": _JOB_SPEC},
                }
            ),
        },
    },
    "LeaderWorkerSet": {
        "metadata": _METADATA,
        "spec": {
            "replicas": COUNT,
            "leaderWorkerTemplate": {
                "size": COUNT,
                "leaderTemplate": _TEMPLATE,
                "workerTemplate": _TEMPLATE,
                "subGroupPolicy": {"subGroupSize": COUNT},
            },
        },
    },
    "Job": {"metadata": _METADATA, "spec": _JOB_SPEC},
    "Pod": {"metadata": _METADATA, "spec": _POD_SPEC},
    "Namespace": {"metadata": _METADATA},
}


_PREFIX = "tpu-provisioner.cloud.google.com/"
#: Of pods with IPUs, which other rules are for.
_OF_PARTITIONS = f"{_PREFIX}partition"
#: What leads from a workload to its templates.
_WITH_METADATA = ("spec", "template", "replicatedJobs", "leaderWorkerTemplate", "leaderTemplate", "workerTemplate")
_LABELS = (constants.DISABLE, constants.SLICE_AUTOPROVISIONING, constants.INJECT, constants.MULTISLICE)
_ANNOTATIONS = (*_LABELS, *constants.READ_ANNOTATIONS, constants.SERVE)


def unread_keys(raw: object) -> Iterator[tuple[Path, str]]:
    """Yield labels and annotations of an object and its templates that look like ours, and that nobody reads."""
    todo: list[tuple[Path, Any]] = [((), raw)]
    while todo:
        path, found = todo.pop()
        if isinstance(found, list):
            todo += (((*path, place), each) for place, each in enumerate(found[: bounds.REPLICATED_JOBS]))
        elif isinstance(found, dict):
            todo += (((*path, key), found[key]) for key in _WITH_METADATA if key in found)
            for marks, read in (("labels", _LABELS), ("annotations", _ANNOTATIONS)):
                for key in map(str, fields.mapping(fields.mapping(found.get("metadata")).get(marks))):
                    ours = key.startswith(_PREFIX) and not key.startswith(_OF_PARTITIONS)
                    if ours and key not in read:
                        words = f"the {marks[:-1]} {bounds.cut(key)} is not read; {_mended(key)}"
                        yield (*path, "metadata", marks, key), words


def _mended(key: str) -> str:
    if key in _ANNOTATIONS:
        return "make it an annotation"
    own = key.removeprefix(_PREFIX)
    if len(own) <= _MOST_CHARACTERS:
        for near in _ANNOTATIONS:
            if _are_alike(own, near.removeprefix(_PREFIX)):
                return f"did you mean {near}?"
    return "remove it"


def checked(kind: str, raw: object) -> tuple[Any, list[tuple[Path, str]]]:
    """Return an object with what its fields were meant to say, and each field that the API server would reject.

    So one mistake does not hide the others, and has no others as its consequence.
    """
    check = _Check()
    return check.read((), raw, SCHEMAS[kind]), check.problems


@dataclass(slots=True)
class _Check:
    """Compares one object with its schema, within bounds."""

    problems: list[tuple[Path, str]] = field(default_factory=list)
    #: Comparing two names is what takes long.
    _comparisons_left: int = _MOST_COMPARISONS

    def read(self, path: Path, value: Any, shape: _Shape) -> Any:
        """Return what a value was meant to be."""
        # null is the same as absent.
        if value is None:
            return None
        if isinstance(shape, _Scalar):
            if isinstance(value, shape.types) and (not isinstance(value, bool) or bool in shape.types):
                return value
            self._reject(path, value, f"{shape.words}{_quoted(value, shape)}")
            return _meant_value(value, shape)
        if isinstance(shape, _ListOf):
            if isinstance(value, list):
                return [self.read((*path, index), item, shape.item) for index, item in enumerate(value)]
            self._reject(path, value, "a list")
            return None
        if not isinstance(value, dict):
            self._reject(path, value, "an object")
            return None
        if isinstance(shape, _MapOf):
            return {key: self.read((*path, key), item, shape.value) for key, item in value.items()}
        return self._read_fields(path, value, shape)

    def _read_fields(self, path: Path, value: dict[str, Any], shape: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for key, item in value.items():
            found[key] = self.read((*path, key), item, shape[key]) if key in shape else item
            if key not in shape and len(value) <= _MOST_KEYS and (near := self._meant(key, shape, value)):
                if len(self.problems) < MOST_PROBLEMS:
                    words = f"{dotted((*path, key))} is not a field; did you mean {near}?"
                    self.problems.append(((*path, key), words))
                found[near] = self.read((*path, key), item, shape[near])
        return found

    def _reject(self, path: Path, value: object, what: str) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            words = f"{dotted(path) or 'the object'} is {_shown(value)}; it must be {what}"
            self.problems.append((path, words))

    def _meant(self, key: str, shape: dict[str, Any], there: dict[str, Any]) -> str:
        """Return the field that an unknown one was probably meant to be; empty for none."""
        if len(key) > _MOST_CHARACTERS:
            return ""
        for name in shape:
            # Too far apart in length alone.
            if name in there or 2 * min(len(key), len(name)) < _LIKE * (len(key) + len(name)):
                continue
            if name.lower() == key.lower():
                return name
            if self._comparisons_left > 0:
                self._comparisons_left -= 1
                if _are_alike(key, name):
                    return name
        return ""


# Most containers have the same fields that nothing reads.
@lru_cache(maxsize=1024)
def _are_alike(key: str, name: str) -> bool:
    # Letters in common, in whatever order, are no fewer than those in order.
    common = sum(min(key.count(letter), name.count(letter)) for letter in set(key))
    if 2 * common < _LIKE * (len(key) + len(name)):
        return False
    import difflib  # noqa: PLC0415 - only where a field looks like another

    return difflib.SequenceMatcher(None, key, name).ratio() >= _LIKE


def _meant_value(value: object, shape: _Scalar) -> object:
    if shape is TEXT and _is_number(value):
        return str(value).lower()
    if isinstance(value, str):
        text = value.strip().lower()
        if shape is COUNT and text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS:
            return int(text)
        if shape is FLAG and text in ("true", "false"):
            return text == "true"
    return None


def _is_number(value: object) -> bool:
    """Whether a value is a number, or a truth value, that can be printed."""
    return isinstance(value, float) or (isinstance(value, int) and value.bit_length() <= fields.MOST_BITS)


def _quoted(value: object, shape: _Scalar) -> str:
    """Say that a value only lacks its quotes: the usual mistake with selectors and annotations."""
    if shape is not TEXT or not _is_number(value):
        return ""
    return f': write "{str(value).lower()}" in quotes'


def _shown(value: object) -> str:
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    return str(value).lower() if isinstance(value, bool) else fields.shown(value)
