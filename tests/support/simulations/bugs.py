"""Bugs planted on purpose, each a small mutation of the real code: every one must be found, or the checks are blind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One mutation: a module or class, one attribute of it, and what it becomes."""

    name: str
    at: tuple[Any, str]
    mutate: Callable[[Any], Any]
    #: The seed from which it is searched for, one that shows it.
    search_from: int = 0


def always(value: Any) -> Callable[[Any], Any]:
    """Return the mutation of a function that makes it return one value."""
    return lambda _original: lambda *_args, **_options: value


@contextmanager
def planted(bugs: Sequence[Bug], name: str) -> Iterator[None]:
    """Plant the bug of a name, nothing for no name."""
    bug = next((each for each in bugs if each.name == name), None)
    if bug is None:
        yield
        return
    with mutated(bug.at, bug.mutate):
        yield


@contextmanager
def mutated(at: tuple[Any, str], mutate: Callable[[Any], Any]) -> Iterator[None]:
    """Replace an attribute of a module or class, wherever it was imported by name."""
    owner, attribute = at
    original = vars(owner)[attribute]
    modules = [module for key, module in sys.modules.items() if key.startswith("provisioner.")]
    places = [owner, *(each for each in modules if each is not owner and vars(each).get(attribute) is original)]
    replacement = mutate(original)
    for place in places:
        setattr(place, attribute, replacement)
    try:
        yield
    finally:
        for place in places:
            setattr(place, attribute, original)
