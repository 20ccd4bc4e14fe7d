"""Finds and reads manifests like `kubectl apply -f`: files, folders and standard input.

Not handled: URLs, files with thousands of nested levels, and characters that JSON escapes as surrogate pairs.
"""

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from provisioner.slices.offline.documents import Document, objects_of
from provisioner.slices.offline.documents import Path as FieldPath

STANDARD_INPUT = "-"
_SUFFIXES = (".json", ".yaml", ".yml")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Problem(NamedTuple):
    """A problem with a file or with one of its lines."""

    source: str
    #: Line number, from 1; 0 if the line is unknown or the problem concerns the whole file.
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: {self.message}" if self.line else f"{self.source}: {self.message}"


class Manifests(NamedTuple):
    """Objects in manifests, and the problems with files that could not be read completely."""

    documents: tuple[Document, ...]
    problems: tuple[Problem, ...]


def read_manifests(names: Iterable[str], *, recursive: bool = False) -> Manifests:
    """Return all objects in files, in the .json, .yaml and .yml files of folders, and in standard input ("-")."""
    documents: list[Document] = []
    problems: list[Problem] = []
    for name in dict.fromkeys(names):
        try:
            for source, content in _contents(name, recursive=recursive):
                parsed, wrong = read_documents(source, content)
                documents += parsed
                problems += wrong
        except OSError as error:
            problems.append(Problem(source=name, line=0, message=f"cannot be read: {error.strerror or error}"))
    objects = [object_ for document in documents for object_ in objects_of(document)]
    return Manifests(documents=tuple(objects), problems=tuple(problems))


def _contents(name: str, *, recursive: bool) -> Iterator[tuple[str, bytes]]:
    if name == STANDARD_INPUT:
        yield name, sys.stdin.buffer.read()
        return
    path = Path(name)
    if path.is_dir():
        paths = path.rglob("*") if recursive else path.iterdir()
        files = sorted(entry for entry in paths if entry.suffix in _SUFFIXES and entry.is_file())
        if not files:
            raise OSError(f"no file in it ends with {', '.join(_SUFFIXES)}")
    else:
        files = [path]
    for file in files:
        yield str(file), file.read_bytes()


def read_documents(source: str, content: bytes | str) -> tuple[list[Document], list[Problem]]:
    """Return the documents of a YAML or JSON file. Stop at the first unreadable document, and return its problem."""
    documents: list[Document] = []
    loader = None
    try:
        loader = _Loader(content)
        while loader.check_node():
            node = loader.get_node()
            value = loader.construct_document(node)
            if value is not None:
                documents.append(Document(value, source, partial(_line_of, node)))
    except yaml.MarkedYAMLError as error:
        mark, began = error.problem_mark or error.context_mark, error.context_mark
        message = f"is not YAML: {error.problem}"
        if error.context and began is not None:
            message += f" ({error.context} that begins in line {began.line + 1})"
        if "token" in message:
            message += "; indent with spaces, not tabs"
        return documents, [Problem(source, mark.line + 1 if mark is not None else 0, message)]
    except yaml.reader.ReaderError as error:
        raw = content.encode() if isinstance(content, str) else content
        line = raw.count(b"\n", 0, error.position) + 1
        return documents, [Problem(source, line, f"is not YAML: {error.reason}")]
    except (ValueError, RecursionError) as error:
        return documents, [Problem(source, 0, f"is not YAML: {error}")]
    finally:
        if loader is not None:
            loader.dispose()
    return documents, []


class _Loader(_LOADER):  # type: ignore[misc]
    """Loads keys, dates and times as texts, like kubectl; unlike kubectl, rejects a key that occurs twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 - PyYAML's
        self.flatten_mapping(node)
        mapping: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key is a mapping or a list", key.start_mark)
            # Keys from `<<` are usually on lines of another mapping, and may be overridden here; others must be unique.
            if node.start_mark.line <= line <= node.end_mark.line:
                if key.value in lines:
                    message = f"key {key.value[:60]!r} occurs twice, first in line {lines[key.value] + 1}; remove one"
                    raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
                lines[key.value] = line
            mapping[key.value] = self.construct_object(value, deep=deep)
        return mapping

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        """Return a number; for a value such as 1:30, which YAML 1.1 reads in base 60, return the text."""
        if ":" in node.value:
            return node.value
        return self.construct_yaml_int(node) if node.tag.endswith("int") else self.construct_yaml_float(node)


for _tag, _construct in (
    ("timestamp", _LOADER.construct_yaml_str),
    ("int", _Loader.construct_number),
    ("float", _Loader.construct_number),
):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _construct)


def _line_of(node: yaml.Node, path: FieldPath) -> int:
    line = node.start_mark.line
    for step in path:
        if isinstance(node, yaml.MappingNode):
            # If a key occurs twice, the last pair counts, because keys that `<<` adds come first.
            pairs = [pair for pair in node.value if pair[0].value == step][-1:]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int):
            pairs = [(item, item) for item in node.value[step : step + 1]]
        else:
            pairs = []
        if not pairs:
            break
        line, node = pairs[0][0].start_mark.line, pairs[0][1]
    return int(line) + 1
