"""Find and read manifests as `kubectl apply -f` does: files, folders and standard input."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from provisioner.cli.frame import complete_files
from provisioner.cli.yamltext import Problem, read_documents
from provisioner.slices.offline.documents import Document, objects_of

_Function = TypeVar("_Function", bound=Callable[..., Any])
STANDARD_INPUT = "-"
_SUFFIXES = (".json", ".yaml", ".yml")
_MOST_BYTES = 16 * 1024 * 1024


class Manifests(NamedTuple):
    """What was read."""

    documents: tuple[Document, ...]
    #: What could not be read.
    problems: tuple[Problem, ...]


class ManifestFiles(NamedTuple):
    """Where the manifests of a command are."""

    #: Files and folders; "-" is standard input.
    names: tuple[str, ...]
    #: Also the folders in a folder.
    recursive: bool

    def read(self) -> Manifests:
        """Read all objects."""
        return read_manifests(self.names, recursive=self.recursive)


def manifest_options(command: _Function) -> _Function:
    """Add the options that say which manifests a command reads; it gets them as `files`, and `namespace`."""

    @functools.wraps(command)
    def wrapped(*arguments: Any, first: tuple[str, ...], more: tuple[str, ...], recursive: bool, **options: Any) -> Any:
        files = ManifestFiles(names=(*first, *more), recursive=recursive)
        if not files.names:
            raise click.UsageError("no file is given; use -f FILE, or -f - for standard input")
        return command(*arguments, files=files, **options)

    file_option = click.option(
        "-f",
        "--filename",
        "first",
        multiple=True,
        metavar="FILE",
        shell_complete=complete_files,
        help="manifest, folder of manifests, or - for standard input; can be repeated",
    )
    file_argument = click.argument("more", nargs=-1, metavar="[FILE]...", shell_complete=complete_files)
    recursive_option = click.option("-R", "--recursive", is_flag=True, help="also read the folders in a folder")
    namespace_option = click.option(
        "-n", "--namespace", default="default", show_default=True, help="namespace of objects that name none"
    )
    return file_option(file_argument(recursive_option(namespace_option(wrapped))))  # type: ignore[return-value]


def read_manifests(names: Iterable[str], *, recursive: bool = False) -> Manifests:
    """Read all objects; "-" is standard input, of a folder the files that kubectl reads."""
    documents: list[Document] = []
    problems: list[Problem] = []
    for name in dict.fromkeys(names):
        try:
            for source, content in _contents(name, recursive=recursive):
                found, wrong = _read(source, content)
                documents += found
                problems += wrong
        except OSError as error:
            problems.append(Problem(source=name, line=0, message=f"cannot be read: {error.strerror or error}"))
    objects = [each for document in documents for each in objects_of(document)]
    return Manifests(documents=tuple(objects), problems=tuple(problems))


def _contents(name: str, *, recursive: bool) -> Iterator[tuple[str, bytes]]:
    if name == STANDARD_INPUT:
        yield name, sys.stdin.buffer.read(_MOST_BYTES + 1)
        return
    path = Path(name)
    if path.is_dir():
        found = path.rglob("*") if recursive else path.iterdir()
        files = sorted(each for each in found if each.suffix in _SUFFIXES and each.is_file())
        if not files:
            raise OSError(f"no file in it ends with {', '.join(_SUFFIXES)}")
    else:
        files = [path]
    for each in files:
        with each.open("rb") as file:
            yield str(each), file.read(_MOST_BYTES + 1)


def _read(source: str, content: bytes) -> tuple[list[Document], list[Problem]]:
    if len(content) > _MOST_BYTES:
        return [], [Problem(source=source, line=0, message=f"has more than {_MOST_BYTES:,} bytes; split it")]
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"is not {error.encoding.upper()}: byte 0x{content[error.start]:02x}"
        return [], [Problem(source=source, line=line, message=message)]
    return read_documents(source, text)
