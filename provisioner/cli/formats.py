"""Output for programs: the types of the API, as JSON or YAML."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

_Function = TypeVar("_Function", bound=Callable[..., Any])
#: Formats for programs.
FORMATS = ("json", "yaml")


def format_option(*more: str) -> Callable[[_Function], _Function]:
    """Add -o with these formats besides those for programs; the command gets `form`, None for a table."""
    return click.option("-o", "--output", "form", type=click.Choice((*FORMATS, *more)), help="format of the output")


def write(value: Any, form: str) -> None:
    """Print a value of the API's types."""
    plain = msgspec.to_builtins(value)
    if form == "json":
        text = msgspec.json.format(msgspec.json.encode(plain), indent=2).decode()
    else:
        import yaml  # noqa: PLC0415 - slow to import

        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120).rstrip("\n")
    sys.stdout.write(f"{text}\n")
