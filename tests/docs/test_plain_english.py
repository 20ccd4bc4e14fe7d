"""Tests that pages, help, settings, Events, conditions, log lines and web pages have no odd wording."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.shell import PAGES, ROOT

#: Replacement for each odd wording, by the regular expression of the wording. Reviewers add their findings.
_WORDS = {
    r"told": "is reported, knows, is unknown",
    r"anew": "again; recreate",
    r"beside": "next to, in addition to, in the same folder as",
    r"so (?:many|long|often|much|few)(?! as)": "that many, after this time",
    r"by (?:itself|themselves)": "automatically",
    r"for ever": "without limit",
    r"each its own|be had": "one for each; is available, is unsupported",
    r"(?:is|are) (?:it|they) well|good for": "check health; valid for, unusable",
    r"no more(?=[.;:)]|$)": "no longer",
    r"(?:is|are) due": "now, at that time",
    r"at fault|by now": "is the cause; now",
    r"all the same": "anyway",
    r"what (?:there is|becomes? of|became of)": "what exists, what happens to, the result",
    r"nobody (?:knows|sees|leads)|of nobody": "is unknown, there is no leader, of no pod",
    r"taken off": "is removed",
    r"(?:stands?|is|are) in the way": "blocks, prevents",
    r"cannot be (?:told|asked)": "cannot be determined, does not answer",
    r"need not": "does not have to",
    r"(?:has|have|had) (?:not )?got": "has, does not have",
    r"so that (?:it gets|its pods|nothing|there|this)": "so",
    r"(?<!there )is no (?:power|project|zone|region|name|object)": "is not a",
    r"(?:is|are) there(?=[.;,)]|$)": "exists",
    r"being made|made again|(?:are|is) made in": "create",
    r"in order to|utili[sz]e|simply": "to; use; leave it out",
}
_ODD = re.compile("|".join(rf"(?<!\w)({word})(?!\w)" for word in _WORDS), re.IGNORECASE)
_ODD_HEADING = re.compile(r"(?m)^#.*(?:\band back|\bwhat is wrong is told)$", re.IGNORECASE)
_NAMES = re.compile(r"`[^`\n]*`|\]\([^)\n]*\)")
_SCRIPT_TEXT = re.compile(r"(?m)^\s*(?://|/?\*).*$|\"([^\"\n]*)\"|`([^`]*)`")
#: Folders whose texts are checked. Simulators are left out, because their texts are Google's.
_FOLDERS = ("provisioner", "rehearsal/commands", "rehearsal/demos", "rehearsal/localcluster", "generators", "docs")
_CODE = [path for folder in _FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".js", ".html")]


def _texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts in a syntax tree. Docstrings are left out, except those of commands, which are help texts."""
    match node:
        case ast.JoinedStr(values=values):
            yield "".join(str(value.value) if isinstance(value, ast.Constant) else "…" for value in values)
        case ast.Constant(value=str(text)):
            yield text
        case _:
            is_command = any("command" in ast.unparse(decorator) for decorator in getattr(node, "decorator_list", ()))
            for child in ast.iter_child_nodes(node):
                if is_command or not isinstance(child, ast.Expr) or not isinstance(child.value, ast.Constant):
                    yield from _texts(child)


def _shown(path: Path) -> list[str]:
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        # Only files with an odd wording are parsed, because parsing all files would take seconds.
        return [*_texts(ast.parse(text))] if _ODD.search(re.sub(r"\"\s+f?\"", "", text)) else []
    return ["".join(parts) for parts in _SCRIPT_TEXT.findall(text)] if path.suffix == ".js" else [_NAMES.sub("", text)]


@pytest.mark.timeout(20)  # Reads hundreds of files.
def test_no_text_has_an_odd_phrase() -> None:
    advice = dict(enumerate(_WORDS.items(), 1))
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]
    texts = [(path, text) for path in (*pages, *_CODE) for text in _shown(path)]
    found = [(path, hit) for path, text in texts for hit in _ODD.finditer(text)]
    assert [f"{path}: {hit[0]!r}: write {advice[hit.lastindex or 0][1]}" for path, hit in found] == []
    assert [(path, hit[0]) for path, text in texts for hit in _ODD_HEADING.finditer(text)] == []
