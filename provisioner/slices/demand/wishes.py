"""What annotations ask for beside the shape of a slice, read once: those of the pod, else those of its workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

from provisioner import constants
from provisioner.model import bounds, choices
from provisioner.model.capacity import Zone
from provisioner.model.choices import CapacityChoice
from provisioner.settings import go_bool, go_duration_seconds

_T = TypeVar("_T")
_KEYS = (
    constants.SAME_ZONE,
    constants.ALL_OR_NOTHING,
    constants.CAPACITY,
    constants.ZONES,
    constants.MAX_RUN_DURATION,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What was asked for; None or empty where nothing was, or where it cannot be read."""

    #: Best first.
    capacity: tuple[CapacityChoice, ...] = ()
    #: Best first.
    zones: tuple[Zone, ...] = ()
    same_zone: bool | None = None
    all_or_nothing: bool | None = None
    max_run_seconds: float | None = None
    #: By annotation: why it cannot be read, in words.
    problems: tuple[tuple[str, str], ...] = ()

    def problem_of(self, key: str) -> str:
        """Say why an annotation cannot be read, empty where it can."""
        return next((words for each, words in self.problems if each == key), "")


_NONE = Wishes()


def read_wishes(annotations: Mapping[str, str], of_workload: Mapping[str, str]) -> Wishes:
    """Read the annotations of a pod, and of its workload for those that the pod does not have."""
    if not annotations and not of_workload:
        return _NONE
    return _read(tuple([annotations.get(key) or of_workload.get(key, "") for key in _KEYS]))


# Annotations are the same in every round, and alike in most pods of a workload.
@lru_cache(maxsize=512)
def _read(texts: tuple[str, ...]) -> Wishes:
    asked = dict(zip(_KEYS, texts, strict=True))
    problems: dict[str, str] = {}

    def read(key: str, parse: Callable[[str], _T]) -> _T | None:
        text = asked[key].strip()
        if not text:
            return None
        try:
            return parse(text)
        except ValueError as error:
            problems[key] = f"annotation {key}={bounds.quoted(asked[key])} {error}"
            return None

    if not any(texts):
        return _NONE
    wishes = Wishes(
        capacity=read(constants.CAPACITY, choices.parse_choices) or (),
        zones=read(constants.ZONES, choices.parse_zones) or (),
        same_zone=read(constants.SAME_ZONE, go_bool),
        all_or_nothing=read(constants.ALL_OR_NOTHING, go_bool),
        max_run_seconds=read(constants.MAX_RUN_DURATION, go_duration_seconds),
    )
    return replace(wishes, problems=tuple(problems.items()))
