"""Finds comments, docstrings and test names that are hard to read: python -m tests.docs.prose FOLDER... [--rule NAME].

A passage is one docstring, one block of comment lines, or the name of one test. The rules find most odd passages, but
not all. CONTRIBUTING.md has the rules for writers.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

CODE = frozenset({"module", "class", "function", "field", "comment", "test"})
_PERSON = r"(?:nobody|no one|somebody|someone|anybody|anyone|everybody)"
_CLAUSE = r"(?:^|(?<=[.;:] ))"
_SPECIAL = r"(?:None|empty|nothing|zero|0|False|True|infinite)"


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern of wording that is hard to read, with advice to the writer."""

    name: str
    advice: str
    pattern: re.Pattern[str]
    kinds: frozenset[str] = CODE


def _rule(name: str, advice: str, *patterns: str, kinds: frozenset[str] = CODE, case: bool = False) -> Rule:
    return Rule(name, advice, re.compile("|".join(patterns), 0 if case else re.IGNORECASE), kinds)


RULES = (
    _rule(
        "free relative",
        "name the thing: 'the request body', not 'what was sent'",
        r"\b[Ww]hat (?!to\b|if\b|kind\b)",
        r"\b(?:all|none|nothing|everything) that\b",
        case=True,
    ),
    _rule(
        "actor",
        "name the actor: the client, the pod, the caller, the administrator",
        r"\bwho(?:m)?ever\b",
        rf"{_CLAUSE}who[ms]?e?\b",
        r"\b(?:for|of|by|but|than|to) whom?\b(?! (?:it|they)\b)",
        rf"\b{_PERSON}\b(?! else's code)",
    ),
    _rule(
        "fragment",
        "write a sentence, or a noun phrase: 'Pods by UID', 'Name of the reservation'",
        r"^(?:Of|By(?! default\b| the time\b| then,)|(?:In|On|From) which|(?:Since|Until) when)\b",
        r"^(?:So (?:many|much|long|often|that)|As (?:many|much|long|far|often|when|where|if)|Such as)\b",
        r"^(?:Not (?!handled|found|all|every)|Nor|Neither|Else|And|Or|But|None but|Nothing but|Likewise|Either way)\b",
        r"\b(?:from|until|since) when\b",
    ),
    _rule(
        "pronoun",
        "repeat the noun: a reader of this line has not read the line before",
        r"^(?:Its?|They|Theirs?|Them|Those|That(?: of| is|,)|One (?:that|which|who|of)|None of|All of)\b",
        r"^(?:The (?:same|others?|(?-i:rest))\b(?! \w+ (?:is|are|was|has))|Others?\b(?! \w+s\b))",
        r"[;:] one\b(?! \w+s\b)|\b(?:is|are) (?-i:none)\b",
    ),
    _rule("gloss", "'None if ...', 'empty if ...', '0 disables ...'", rf'(?:^|(?<=[.;,] ))(?:{_SPECIAL}|""): '),
    _rule(
        "where",
        "'if' or 'when': 'where' is for places",
        rf"\b(?:{_SPECIAL}|\w*Error|Malformed|Busy) where\b",
        rf"\bwhere (?:there (?:is|are|was)|nothing|none|{_PERSON})\b",
        r"\bwhere (?:it|they|that) (?:is|are|has|have|does|do|can|cannot|may|fails?)\b",
    ),
    _rule(
        "vocabulary",
        "use the plain word: knows, again, next to, that many, automatically, exists, without limit",
        r"\btold\b|\banew\b|\bbesides?\b|\bfor ever\b|\bin vain\b|\bmeanwhile\b|\bat hand\b|\bbe had\b|\bours\b",
        r"\b(?:so|however) (?:many|much|long|often|few)\b(?! (?:as|that)\b)|\bas far as\b|\ball the same\b",
        r"\bno more(?=[.;:,)]|$)|\b(?:is|are) there(?=[.;:,)]|$| already| any more)|, too(?=[.;:,)]|$)",
        r"\bby (?:itself|themselves)\b|\bin the way\b|\blets? (?:it |them )?go\b|\bgoes? by\b|\bunder way\b",
        r"\bcomes? again\b|\bmade again\b|\bof (?:ours|others|nobody)\b|\btakes? note\b|\bfor people\b|\bin words\b",
        r"\btells?\b(?! .{0,30}\bapart\b)|(?<!leave )(?<!left )(?<!leaves )(?<!let )\balone(?=[.;:,)]|$)",
        r"\bcosts? no(?:t|body)?\b.{0,30}\bturn\b|\bas it is(?=[.;:,)]|$)",
        r"\bwhatever (?:it|else|that|came|comes|happens)\b",
    ),
    _rule(
        "inversion",
        "subject first: 'X has N of Y', not 'of Y X has N'",
        r"(?:(?<=[.;] )|(?<=\w: ))of (?!course\b)|(?:^|(?<=[.;,] ))(?:nor|neither) \w+ (?:the|a|it|they)\b",
        r", for (?:it|they|there|nobody|nothing|\w+s (?:are|have|may))\b",
    ),
    _rule(
        "telling",
        "the docstring says what the function returns or changes: 'Return ...', 'Report ...', 'Record ...'",
        r"^(?:Say|Tells?|Says|Take note|Let (?:go|happen)|Go by)\b",
        kinds=frozenset({"function"}),
    ),
    _rule(
        "continuation",
        "write a sentence of its own: the condition and the expected result",
        r"^(?:With|Without|For|In|On|At|From|To|Until|Before|After|Also|Even|Where|Only|Nothing|None|Once|Each|Some|Any"
        r"|Just|Both|All)\b[^,;:]{0,52}$",
        kinds=frozenset({"test"}),
    ),
    _rule(
        "test name",
        "test_<subject>_<condition>_<outcome>, in the words of the glossary",
        r"^test_(?:of|whose)_",
        r"(?:^|_)(?:who|whom|whoever|whatever|told|anew|nobody|somebody|anybody|beside|what(?!_to_do)|nor|ours)(?:_|$)",
        r"(?:^|_)(?:so_(?:many|long)|(?:is|are)_there|(?:one|those|all|none)_that|by_itself|for_ever)(?:_|$)",
        r"(?:^|_)(?:in_the_way|of_others|as_far_as|in_vain)(?:_|$)",
        kinds=frozenset({"test name"}),
    ),
)
_QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"")
_NO_PROSE = re.compile(r"(?:noqa|type:|fmt:|pragma|shellcheck|!/)|[-=]{2}")


class Passage(NamedTuple):
    """A passage of prose in a Python file."""

    path: Path
    line: int
    kind: str
    text: str

    def broken(self) -> list[Rule]:
        plain = _QUOTED.sub("X", self.text)
        return [rule for rule in RULES if self.kind in rule.kinds and rule.pattern.search(plain)]


def passages_of(path: Path) -> Iterator[Passage]:
    """Yield the docstrings, comments and test names of a Python file."""
    source = path.read_text("utf-8")
    kinds = {ast.Module: "module", ast.ClassDef: "class"}
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        is_test = not isinstance(node, ast.Module | ast.ClassDef) and node.name.startswith("test_")
        if is_test and not isinstance(node, ast.Module):
            yield Passage(path, node.lineno, "test name", node.name)
        if text := ast.get_docstring(node):
            kind = "test" if is_test else kinds.get(type(node), "function")
            yield Passage(path, node.body[0].lineno, kind, " ".join(text.split()))
    yield from _comments(path, source)


def _comments(path: Path, source: str) -> Iterator[Passage]:
    """Yield the comments of a file; comment lines directly below each other are one passage."""
    blocks: list[list[tokenize.TokenInfo]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        follows = blocks and blocks[-1][-1].start == (token.start[0] - 1, token.start[1])
        if follows and not token.line[: token.start[1]].strip():
            blocks[-1].append(token)
        else:
            blocks.append([token])
    for block in blocks:
        text = " ".join(token.string.lstrip("#: ").rstrip() for token in block)
        if re.search(r"[a-z]{2}", text) and not _NO_PROSE.match(text):
            kind = "field" if block[0].string.startswith("#:") else "comment"
            yield Passage(path, block[0].start[0], kind, text)


def hits(folders: Iterable[Path]) -> Iterator[tuple[Passage, list[Rule]]]:
    """Yield the passages that break rules, with these rules, of all Python files in folders."""
    for folder in folders:
        for path in [folder] if folder.is_file() else sorted(folder.rglob("*.py")):
            for passage in passages_of(path):
                if broken := passage.broken():
                    yield passage, broken


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--rule", choices=[rule.name for rule in RULES])
    options = parser.parse_args()
    found = 0
    for passage, broken in hits(options.folders):
        if options.rule in (None, *(rule.name for rule in broken)):
            found += 1
            advice = "; ".join(f"{rule.name}: {rule.advice}" for rule in broken)
            sys.stdout.write(f"{passage.path}:{passage.line} {advice}\n    {passage.text}\n")
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main())
