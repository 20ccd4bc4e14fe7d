"""Read YAML as kubectl does, with the line of each value; whatever the text is, it takes time in proportion to it.

Built from PyYAML's events, because its composer recurses, forgets keys that come twice, and reads YAML 1.1's dates and
base-60 numbers, which kubectl does not.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

from provisioner.slices.offline.documents import Document, Node

#: No Kubernetes object needs more. libyaml's time grows with the square of the depth.
_MOST_DEPTH = 100
#: All aliases expanded.
_MOST_CHARACTERS = 16 * 1024 * 1024
_SEPARATOR = re.compile(r"^---(?=[ \t\r]|$)", re.MULTILINE)
_NOTHING = re.compile(r"(---)?\s*")
_ONLY_REMARKS = re.compile(r"(\s*(#.*|%.*)?\n?)*\Z")
_UNPRINTABLE = yaml.reader.Reader.NON_PRINTABLE
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: What JSON may have in texts and YAML may not, or would take for a line break.
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_ESCAPE = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u[dD][89a-fA-F]..|\\.")
_NULLS = ("", "~", "null", "Null", "NULL")
_TRUE = ("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON")
_FALSE = ("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF")
_INT = re.compile(r"[-+]?(0b[01]+|0o?[0-7]+|0x[0-9a-fA-F]+|[1-9][0-9]*|0)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
#: More digits are no number of any field, and Python takes long to read them.
_MOST_DIGITS = 40
#: Tags of scalars that are no texts, quoted or not.
_NUMBERS = ("int", "float", "bool", "null")
_TAG = "tag:yaml.org,2002:"


class Problem(NamedTuple):
    """Something that is wrong with a file or a line of it."""

    source: str
    #: From 1; 0 for the file as a whole.
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: {self.message}" if self.line else f"{self.source}: {self.message}"


class _UnreadableError(Exception):
    """Why a document cannot be read."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(slots=True)
class _Open:
    """A mapping or sequence that has not ended."""

    node: Node
    #: The key whose value comes next, and its line.
    key: str | None = None
    key_line: int = 0
    #: Mappings that `<<` names.
    merged: list[Node] = field(default_factory=list)
    anchor: str | None = None


def read_documents(source: str, text: str) -> tuple[list[Document], list[Problem]]:
    """Read all documents of a text; one that cannot be read does not hide the others."""
    if text.lstrip().startswith("{"):
        text = _as_yaml(text)
    found = _UNPRINTABLE.search(text)
    if found is not None:
        line = text.count("\n", 0, found.start()) + 1
        message = f"character U+{ord(found[0]):04X} is not allowed in YAML; remove it"
        return [], [Problem(source=source, line=line, message=message)]
    documents: list[Document] = []
    problems: list[Problem] = []
    for first_line, part in _parts(text):
        reader = _Reader(source=source, first_line=first_line)
        try:
            documents += reader.documents(part)
        except _UnreadableError as error:
            problems.append(Problem(source=source, line=error.line, message=str(error)))
        problems += reader.problems
    return documents, problems


def _as_yaml(text: str) -> str:
    """Return JSON such that it is YAML, with the same lines; any other text as it is."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    # JSON has these in texts alone.
    text = _NOT_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    text = _ESCAPE.sub(_as_character, text)
    # And tabs never.
    return text.replace("\t", " ")


def _as_character(escape: re.Match[str]) -> str:
    """Replace an escaped pair of surrogates by its character, and a single one by what stands for none."""
    if len(escape[0]) <= 2:
        return escape[0]
    units = bytes.fromhex(escape[0].replace("\\u", ""))
    return units.decode("utf-16-be", "replace") if len(units) > 2 else "\ufffd"


def _parts(text: str) -> Iterator[tuple[int, str]]:
    """Split a text at the lines that begin with three dashes, as kubectl does; each with its first line."""
    starts = [0, *(match.start() for match in _SEPARATOR.finditer(text)), len(text)]
    line, carried = 1, ""
    for start, end in itertools.pairwise(starts):
        part = carried + text[start:end]
        # Directives and comments belong to what follows them.
        if end < len(text) and "%" in part and _ONLY_REMARKS.match(part):
            carried = part
            continue
        if not _NOTHING.fullmatch(part):
            yield line, part
        line += part.count("\n")
        carried = ""


@dataclass(slots=True)
class _Reader:
    """Reads one part of a file."""

    source: str
    first_line: int
    problems: list[Problem] = field(default_factory=list)
    _anchors: dict[str, Node | None] = field(default_factory=dict)
    _stack: list[_Open] = field(default_factory=list)
    _root: Node | None = None

    def documents(self, text: str) -> list[Document]:
        found = []
        try:
            for event in yaml.parse(text, Loader=_LOADER):
                if isinstance(event, yaml.DocumentStartEvent):
                    self._anchors, self._stack, self._root = {}, [], None
                elif isinstance(event, yaml.DocumentEndEvent):
                    if self._root is not None and self._root.value is not None:
                        found.append(Document(self._root.value, self.source, self._root))
                else:
                    self._take(event)
        except yaml.MarkedYAMLError as error:
            raise _UnreadableError(self._line_of_error(error), _words_of(error, self.first_line)) from error
        except yaml.YAMLError as error:
            raise _UnreadableError(self.first_line, f"is not YAML: {error}") from error
        return found

    def _line(self, event: Any) -> int:
        return self.first_line + int(event.start_mark.line)

    def _line_of_error(self, error: yaml.MarkedYAMLError) -> int:
        mark = error.problem_mark or error.context_mark
        return self.first_line + (int(mark.line) if mark is not None else 0)

    def _take(self, event: Any) -> None:
        if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            if len(self._stack) >= _MOST_DEPTH:
                raise _UnreadableError(self._line(event), f"is nested deeper than {_MOST_DEPTH} levels")
            is_mapping = isinstance(event, yaml.MappingStartEvent)
            line = self._line(event)
            node = Node(line=line, value={}, children={}, key_lines={})
            if not is_mapping:
                node = Node(line=line, value=[], children=[])
            if event.anchor is not None:
                self._anchors[event.anchor] = None
            self._stack.append(_Open(node, anchor=event.anchor))
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            opened = self._stack.pop()
            _merge(opened)
            if opened.anchor is not None:
                self._anchors[opened.anchor] = opened.node
            self._put(opened.node, self._line(event))
        elif isinstance(event, yaml.ScalarEvent):
            node = Node(line=self._line(event), value=_scalar(event), size=len(event.value) + 1)
            if event.anchor is not None:
                self._anchors[event.anchor] = node
            self._put(node, node.line, is_merge=event.value == "<<" and not event.style)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise _UnreadableError(self._line(event), f"alias *{event.anchor} names no anchor above it")
            found = self._anchors[event.anchor]
            if found is None:
                raise _UnreadableError(self._line(event), f"alias *{event.anchor} is inside of what it stands for")
            self._put(found, self._line(event))

    def _put(self, node: Node, line: int, *, is_merge: bool = False) -> None:
        """Put a value, or a key, where it belongs."""
        if not self._stack:
            self._root = node
            return
        top = self._stack[-1]
        holder = top.node
        if isinstance(holder.children, list):
            holder.children.append(node)
            holder.value.append(node.value)
        elif top.key is None:
            top.key, top.key_line = "<<" if is_merge else _key(node, line), line
            if is_merge:
                # No key of an object begins so.
                top.key = "\0<<"
            return
        elif top.key == "\0<<":
            top.merged += node.children if isinstance(node.children, list) else [node]
            top.key = None
            return
        else:
            self._set(top, node)
        holder.size += node.size
        if holder.size > _MOST_CHARACTERS:
            raise _UnreadableError(line, f"has more than {_MOST_CHARACTERS:,} characters, its aliases expanded")

    def _set(self, top: _Open, node: Node) -> None:
        holder, key = top.node, top.key or ""
        top.key = None
        children, lines = holder.children, holder.key_lines
        if not isinstance(children, dict) or lines is None:
            raise TypeError("only mappings have keys")
        if key in children:
            message = f"key {_short(key)} is there twice, first in line {lines[key]}; remove one"
            self.problems.append(Problem(source=self.source, line=top.key_line, message=message))
        children[key], lines[key] = node, top.key_line
        holder.value[key] = node.value
        holder.size += len(key) + 1


def _merge(opened: _Open) -> None:
    """Add what `<<` names and the mapping does not have itself."""
    holder = opened.node
    for each in opened.merged:
        if not isinstance(each.children, dict) or not isinstance(holder.children, dict):
            continue
        for key, node in each.children.items():
            if key not in holder.children:
                holder.children[key] = node
                holder.value[key] = node.value
                holder.size += node.size


def _key(node: Node, line: int) -> str:
    if node.children is not None:
        raise _UnreadableError(line, "has a mapping or a list as a key; keys are texts")
    value = node.value
    return value if isinstance(value, str) else "null" if value is None else json.dumps(value)


def _scalar(event: Any) -> Any:
    """Read a scalar as kubectl does."""
    text, kind = _whole(str(event.value)), str(event.tag or "").removeprefix(_TAG)
    if kind in _NUMBERS or (not event.style and kind != "str"):
        return _plain(text)
    return text


def _whole(text: str) -> str:
    """Put pairs of surrogates together, as JSON writes them; a single one is no character."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _plain(text: str) -> Any:
    if text in _NULLS:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if not (text[0] in "-+." or text[0].isdigit()) or len(text) > _MOST_DIGITS:
        return text
    digits = text.replace("_", "")
    if _INT.fullmatch(digits):
        sign, bare = (-1, digits[1:]) if digits[0] == "-" else (1, digits.lstrip("+"))
        octal = len(bare) > 1 and bare[0] == "0" and bare[1].isdigit()
        return sign * (int(bare, 8) if octal else int(bare, 0))
    return float(digits) if _FLOAT.fullmatch(digits) else text


def _words_of(error: yaml.MarkedYAMLError, first_line: int) -> str:
    words = f"is not YAML: {error.problem}"
    mark = error.context_mark
    if error.context and mark is not None:
        words += f" ({error.context} that begins in line {first_line + mark.line})"
    if "tab" in words or "token" in words:
        words += "; indent with spaces, not tabs"
    return words


def _short(key: str) -> str:
    return repr(key if len(key) <= 60 else f"{key[:59]}…")
