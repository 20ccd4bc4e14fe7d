"""Planted bugs: small mutations of the real code. If a simulation does not find one, its checks are too weak."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

#: A module or class, and the name of one of its attributes.
At = tuple[Any, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A mutation of the attribute `at`, and of `also` if a second place would hide the bug."""

    name: str
    at: At
    mutate: Callable[[Any], Any]
    also: tuple[At, Callable[[Any], Any]] | None = None
    #: First seed to run, so that a seed that shows the bug is found soon.
    search_from: int = 0
    #: Names of the faults to inject, if other faults make the bug rare; empty if each seed draws its faults.
    storm: tuple[str, ...] = ()


def always(value: Any) -> Callable[[Any], Any]:
    return lambda _original: lambda *_args, **_options: value


@contextmanager
def planted(bugs: Sequence[Bug], name: str) -> Iterator[tuple[str, ...]]:
    """Apply the bug with this name, if any, until the end of the block; yield the bug's `storm`."""
    bug = next((candidate for candidate in bugs if candidate.name == name), None)
    with ExitStack() as stack:
        for at, mutate in ((bug.at, bug.mutate), *filter(None, (bug.also,))) if bug is not None else ():
            stack.enter_context(mutated(at, mutate))
        yield bug.storm if bug is not None else ()


@contextmanager
def mutated(at: At, mutate: Callable[[Any], Any]) -> Iterator[None]:
    """Replace an attribute of a module or class, also in modules of `provisioner` that imported it by name."""
    owner, attribute = at
    original = vars(owner)[attribute]
    modules = [module for key, module in sys.modules.items() if key.startswith("provisioner.")]
    places = [owner, *(module for module in modules if module is not owner and vars(module).get(attribute) is original)]
    replacement = mutate(original)
    for place in places:
        setattr(place, attribute, replacement)
    try:
        yield
    finally:
        for place in places:
            setattr(place, attribute, original)
