"""Write YAML that kubectl reads as what it stands for.

PyYAML leaves out the quotes of texts that it reads as texts itself, and kubectl reads some of these as truths or
numbers: y, 1e3, 0o17.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from provisioner.cli.yamltext import read_plain

_WIDTH = 120
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_DUMPER):  # type: ignore[misc]
    """Writes texts such that kubectl reads texts, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        """Write what is in several places each time."""
        return True


def _text(dumper: Any, text: str) -> yaml.Node:
    style = None
    if "\n" in text:
        style = "|"
    elif read_plain(text) != text:
        style = "'"
    node: yaml.Node = dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
    return node


_Dumper.add_representer(str, _text)


def yaml_of(documents: Iterable[Any]) -> str:
    """Return documents of decoded JSON as YAML, in the order of their keys."""
    return yaml.dump_all(
        documents, Dumper=_Dumper, explicit_start=True, sort_keys=False, allow_unicode=True, width=_WIDTH
    ).removeprefix("---\n")
