"""Finds commands in the documentation: in fenced blocks of bash, and in code spans of the text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "deploy" / "charts").rglob("*.md"),
        ROOT / "examples" / "README.md",
    ]
)
#: Code spans that begin with one of these programs are commands.
_INLINE = re.compile(r"(kubectl|make|tpu-(provisioner|rehearsal)|(\S+/)?bin/(tpu-\w+|python)|python -m) \S")
_MARKDOWN = MarkdownIt("commonmark").enable("table")
_SEPARATORS = frozenset({"&&", "||", "|", ";", "&", "(", ")", "\n", ";;"})
_KEYWORDS = frozenset({"if", "then", "else", "fi", "for", "do", "done", "while", "until", "!", "{", "}"})
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
#: A here-document: the lines with the input of a command.
_HERE_DOCUMENT = re.compile(r"(?ms)(<<-?\s*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)[^\n]*\n).*?^\s*(?P=end)$")
_OPTIONAL = re.compile(r"[][]")


@dataclass(frozen=True, slots=True)
class Shown:
    """Shell code on a page."""

    page: str
    line: int
    text: str
    fenced: bool

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def shown() -> list[Shown]:
    return [block for page in PAGES for block in _shown_on(page)]


def _shown_on(page: Path) -> Iterator[Shown]:
    name = page.relative_to(ROOT).as_posix()
    for token in _MARKDOWN.parse(page.read_text("utf-8")):
        line = token.map[0] + 1 if token.map else 0
        if token.type == "fence" and token.info.split(" ")[:1] == ["bash"]:
            yield Shown(name, line, token.content, fenced=True)
        for child in token.children or ():
            if child.type == "code_inline" and _INLINE.match(child.content):
                yield Shown(name, line, child.content, fenced=False)


def commands(text: str) -> Iterator[list[str]]:
    """Yield the simple commands in shell code: words without assignments, redirections and quotes.

    Commands in `$(...)` outside of quotes are separate commands.
    """
    text = _HERE_DOCUMENT.sub(r"\1", text)
    lexer = shlex.shlex(text.replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    skip = False
    for token in (*_without_comments(lexer), ";"):
        if token in _SEPARATORS or set(token) <= set("()|&;"):
            if words:
                yield words
            words, skip = [], False
        elif set(token) <= set("<>&"):
            skip = True
        elif skip:
            skip = False
        elif words or not (token in _KEYWORDS or _ASSIGNMENT.match(token) or token == "$"):
            words.append(token)


def _without_comments(lexer: shlex.shlex) -> Iterator[str]:
    # shlex would drop everything after the first comment, because the lines have been joined by semicolons.
    lexer.commenters = ""
    comment = False
    for token in lexer:
        comment = (comment or token.startswith("#")) and token != ";"
        if not comment:
            yield token


def programs(words: list[str]) -> Iterator[list[str]]:
    """Yield a command and the commands that it starts: after `time`, and after `kubectl exec ... --`."""
    yield words
    if words[0] == "time" and words[1:]:
        yield from programs(words[1:])
    if words[0] == "kubectl" and "exec" in words and "--" in words:
        yield from programs(words[words.index("--") + 1 :])


def plain(words: list[str]) -> list[str]:
    return [word for word in (_OPTIONAL.sub("", word) for word in words) if word]
