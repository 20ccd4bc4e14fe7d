"""Bugs planted on purpose, each a small mutation of the real code: every one must be found, or the checks are blind."""

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
    """One mutation, or two where the code has the same care twice: an attribute, and what it becomes."""

    name: str
    at: At
    mutate: Callable[[Any], Any]
    also: tuple[At, Callable[[Any], Any]] | None = None
    #: The seed from which it is searched for, one that shows it soon.
    search_from: int = 0
    #: The kinds of faults that show it, for what would be a rare coincidence among all kinds.
    storm: tuple[str, ...] = ()


def always(value: Any) -> Callable[[Any], Any]:
    """Return the mutation of a function that makes it return one value."""
    return lambda _original: lambda *_args, **_options: value


@contextmanager
def planted(bugs: Sequence[Bug], name: str) -> Iterator[tuple[str, ...]]:
    """Plant the bug of a name, nothing for no name; yield the kinds of faults that show it."""
    bug = next((each for each in bugs if each.name == name), None)
    with ExitStack() as stack:
        for at, mutate in ((bug.at, bug.mutate), *filter(None, (bug.also,))) if bug is not None else ():
            stack.enter_context(mutated(at, mutate))
        yield bug.storm if bug is not None else ()


@contextmanager
def mutated(at: At, mutate: Callable[[Any], Any]) -> Iterator[None]:
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
