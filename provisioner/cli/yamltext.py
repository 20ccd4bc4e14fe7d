"""Read YAML as kubectl does, with the line of each value; whatever the text is, it takes time in proportion to it.

Built from PyYAML's events, because its composer recurses, forgets keys that come twice, and reads YAML 1.1's dates and
base-60 numbers, which kubectl does not.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

from provisioner.slices.offline.documents import Document, Node

#: No Kubernetes object needs more. libyaml's time grows with the square of the depth.
_MOST_DEPTH = 100
#: All aliases expanded.
_MOST_CHARACTERS = 16 * 1024 * 1024
#: Of a file, those that `<<` names once more each time: as many as ten megabytes of pods have.
_MOST_VALUES = 500_000
_SEPARATOR = re.compile(r"^---(?=[ \t\r]|$)", re.MULTILINE)
_NOTHING = re.compile(r"(---)?\s*")
_UNPRINTABLE = yaml.reader.Reader.NON_PRINTABLE
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: What JSON may have in texts and YAML may not, or would take for a line break.
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_ESCAPE = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u[dD][89a-fA-F]..|\\.")
_NULLS = ("", "~", "null", "Null", "NULL")
_TRUE = ("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON")
_FALSE = ("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF")
#: What is no text without quotes.
_WORDS = {**dict.fromkeys(_NULLS), **dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}
_INT = re.compile(r"[-+]?(0b[01]+|0o?[0-7]+|0x[0-9a-fA-F]+|[1-9][0-9]*|0)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
#: More digits are no number of any field, and Python takes long to read them.
_MOST_DIGITS = 40
#: Tags of scalars that are no texts, quoted or not.
_NUMBERS = ("int", "float", "bool", "null")
_TAG = "tag:yaml.org,2002:"
#: The key `<<`; no key of an object begins so.
_MERGE = "\0<<"
_NO_KEY = "has a mapping or a list as a key; keys are texts"


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
    anchor: str | None
    #: The children of a mapping; None for a sequence.
    fields: dict[str, Node] | None
    #: The key whose value comes next, and its line.
    key: str | None = None
    key_line: int = 0
    #: Mappings that `<<` names.
    merged: list[Node] = field(default_factory=list)


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
    values = 0
    for first_line, part in _parts(text):
        reader = _Reader(source=source, first_line=first_line, values=values)
        try:
            documents += reader.documents(part)
        except _UnreadableError as error:
            problems.append(Problem(source=source, line=error.line, message=str(error)))
        problems += reader.problems
        values = reader.values
    return documents, problems


def _as_yaml(text: str) -> str:
    """Return JSON such that it is YAML, with the same lines; any other text as it is."""
    import json  # noqa: PLC0415 - not for YAML

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
        if end < len(text) and "%" in part and _has_only_remarks(part):
            carried = part
            continue
        if not _NOTHING.fullmatch(part):
            yield line, part
        line += part.count("\n")
        carried = ""


def _has_only_remarks(part: str) -> bool:
    return all(line.lstrip()[:1] in ("", "#", "%") for line in part.split("\n"))


@dataclass(slots=True)
class _Reader:
    """Reads one part of a file."""

    source: str
    first_line: int
    #: So far in the file.
    values: int = 0
    problems: list[Problem] = field(default_factory=list)
    _anchors: dict[str, Node | None] = field(default_factory=dict)
    _stack: list[_Open] = field(default_factory=list)
    _root: Node | None = None

    def documents(self, text: str) -> list[Document]:
        found = []
        take: dict[type[yaml.Event], Callable[[Any], None]] = {
            yaml.ScalarEvent: self._scalar,
            yaml.MappingStartEvent: self._start,
            yaml.SequenceStartEvent: self._start,
            yaml.MappingEndEvent: self._end,
            yaml.SequenceEndEvent: self._end,
            yaml.AliasEvent: self._alias,
        }
        try:
            for event in yaml.parse(text, Loader=_LOADER):
                kind = event.__class__
                if kind in take:
                    take[kind](event)
                elif kind is yaml.DocumentStartEvent:
                    self._anchors, self._stack, self._root = {}, [], None
                elif kind is yaml.DocumentEndEvent and self._root is not None and self._root.value is not None:
                    found.append(Document(self._root.value, self.source, self._root))
        except yaml.MarkedYAMLError as error:
            raise _UnreadableError(self._line_of_error(error), _words_of(error, self.first_line)) from error
        except yaml.YAMLError as error:
            raise _UnreadableError(self.first_line, f"is not YAML: {error}") from error
        return found

    def _line(self, event: Any) -> int:
        line: int = event.start_mark.line
        return self.first_line + line

    def _line_of_error(self, error: yaml.MarkedYAMLError) -> int:
        mark = error.problem_mark or error.context_mark
        return self.first_line + (int(mark.line) if mark is not None else 0)

    def _scalar(self, event: Any) -> None:
        text, line = event.value, self._line(event)
        top = self._stack[-1] if self._stack else None
        self._count(1, line)
        if top is not None and top.key is None and top.fields is not None:
            top.key, top.key_line = _MERGE if text == "<<" and not event.style else _key(_value_of(event)), line
            if event.anchor is not None:
                self._anchors[event.anchor] = Node(line, _value_of(event), size=len(text) + 1)
            return
        node = Node(line, _value_of(event), size=len(text) + 1)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        self._put(node, line)

    def _start(self, event: Any) -> None:
        line = self._line(event)
        self._count(1, line)
        if len(self._stack) >= _MOST_DEPTH:
            raise _UnreadableError(line, f"is nested deeper than {_MOST_DEPTH} levels")
        if self._stack and self._stack[-1].fields is not None and self._stack[-1].key is None:
            raise _UnreadableError(line, _NO_KEY)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if event.__class__ is yaml.MappingStartEvent:
            fields: dict[str, Node] = {}
            self._stack.append(_Open(Node(line, {}, fields, {}), event.anchor, fields))
        else:
            self._stack.append(_Open(Node(line, [], []), event.anchor, None))

    def _end(self, event: Any) -> None:
        opened = self._stack.pop()
        if opened.merged:
            self._merge(opened)
        if opened.anchor is not None:
            self._anchors[opened.anchor] = opened.node
        self._put(opened.node, self._line(event))

    def _alias(self, event: Any) -> None:
        line = self._line(event)
        self._count(1, line)
        if event.anchor not in self._anchors:
            raise _UnreadableError(line, f"alias *{event.anchor} names no anchor above it")
        found = self._anchors[event.anchor]
        if found is None:
            raise _UnreadableError(line, f"alias *{event.anchor} is inside of what it stands for")
        top = self._stack[-1] if self._stack else None
        if top is not None and top.key is None and top.fields is not None:
            if found.children is not None:
                raise _UnreadableError(line, _NO_KEY)
            top.key, top.key_line = _key(found.value), line
        else:
            self._put(found, line)

    def _put(self, node: Node, line: int) -> None:
        """Put a value where it belongs."""
        if not self._stack:
            self._root = node
            return
        top = self._stack[-1]
        holder, fields = top.node, top.fields
        if fields is None:
            # A sequence.
            holder.children.append(node)  # type: ignore[union-attr]
            holder.value.append(node.value)
        else:
            key, top.key = top.key or "", None
            if key == _MERGE:
                top.merged += node.children if isinstance(node.children, list) else [node]
                return
            lines = holder.key_lines if holder.key_lines is not None else {}
            if key in fields:
                message = f"key {_short(key)} is there twice, first in line {lines[key]}; remove one"
                self.problems.append(Problem(source=self.source, line=top.key_line, message=message))
            fields[key], lines[key] = node, top.key_line
            holder.value[key] = node.value
            holder.size += len(key) + 1
        holder.size += node.size
        if holder.size > _MOST_CHARACTERS:
            raise _UnreadableError(line, f"has more than {_MOST_CHARACTERS:,} characters, its aliases expanded")

    def _merge(self, opened: _Open) -> None:
        """Add what `<<` names and the mapping does not have itself."""
        holder, fields = opened.node, opened.fields
        for each in opened.merged:
            if isinstance(each.children, dict) and fields is not None:
                self._count(len(each.children), holder.line)
                for key, node in each.children.items():
                    if key not in fields:
                        fields[key] = node
                        holder.value[key] = node.value
                        holder.size += node.size

    def _count(self, values: int, line: int) -> None:
        self.values += values
        if self.values > _MOST_VALUES:
            raise _UnreadableError(line, f"has more than {_MOST_VALUES:,} values; split the file")


def _key(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "null" if value is None else str(value).lower()


def _value_of(event: Any) -> Any:
    """Read a scalar as kubectl does."""
    text: str = event.value
    tag = event.tag
    if not tag and not event.style:
        # As nearly all are.
        return read_plain(text if text.isascii() else _whole(text))
    kind = str(tag or "").removeprefix(_TAG)
    text = _whole(text)
    return read_plain(text) if kind in _NUMBERS or (not event.style and kind != "str") else text


def _whole(text: str) -> str:
    """Put pairs of surrogates together, as JSON writes them; a single one is no character."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def read_plain(text: str) -> Any:
    """Read a scalar without quotes as kubectl does."""
    if text in _WORDS:
        return _WORDS[text]
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
