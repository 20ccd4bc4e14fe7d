"""Tests that the documentation has an entry with cause and remedy for each message of the controllers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from provisioner.slices.planning.plan import DeleteReason
from provisioner.slices.preflight import Status
from tests.docs import vocabulary

#: Long time-out, because the first test parses the code of the controllers.
pytestmark = pytest.mark.timeout(30)

_DOCS = Path(__file__).parents[2] / "docs"
_ENTRY = re.compile(r"(?ms)^### `(?P<name>[^\n]+)`\n(?P<body>.*?)(?=^##|\Z)")
#: States of pods that Kubernetes shows. The provisioner's code does not contain them.
_OF_KUBERNETES = frozenset({"CrashLoopBackOff", "ImagePullBackOff", "OOMKilled"})
_EVENTS = ("events.md", "node-groups/events.md", "partitions/events.md")
_SYMPTOMS = ("troubleshooting.md", "node-groups/troubleshooting.md", "partitions/troubleshooting.md")
_READINESS, _LOG = "## `/readyz` fails", "## Warnings and errors in the log"


def _entries() -> dict[str, str]:
    found = [entry for page in _EVENTS for entry in _ENTRY.findall((_DOCS / page).read_text("utf-8"))]
    assert len(dict(found)) == len(found), "an entry is there twice"
    return dict(found)


def _section(page: str, title: str) -> str:
    return (_DOCS / page).read_text("utf-8").partition(f"{title}\n")[2].partition("\n## ")[0]


def _rows(section: str) -> dict[str, str]:
    """Return the names in the first column of a section's tables on all pages, with the rest of the row."""
    text = "\n".join(_section(page, section) for page in _SYMPTOMS)
    rows = re.findall(r"(?m)^\| (`.+?`) \| (.+) \|$", text)
    found = [(name, rest) for names, rest in rows for name in re.findall(r"`([^`]+)`", names) if name != "event"]
    assert found
    assert len(dict(found)) == len(found), "a row is there twice"
    return dict(found)


def _unmatched(patterns: set[str], names: set[str]) -> tuple[list[str], list[str]]:
    without = sorted(pattern for pattern in patterns if not any(re.fullmatch(pattern, name) for name in names))
    return without, sorted(name for name in names if not any(re.fullmatch(pattern, name) for pattern in patterns))


def test_each_entry_has_cause_and_remedy() -> None:
    for name, body in _entries().items():
        leads = re.findall(r"(?m)^- (Cause|Look|Do)\b", body)
        assert leads in (["Cause", "Do"], ["Cause", "Look", "Do"]), name
    for section in (_READINESS, _LOG):
        for name, rest in _rows(section).items():
            assert rest.split(" | ")[-1].strip(), name


def test_each_reason_of_an_event_has_an_entry() -> None:
    """The test also finds entries about reasons that were removed."""
    assert vocabulary.literal_reasons() == set(), "use a constant, such as a member of EventReason"
    table = "\n".join(_section(page, "## Events that need no action") for page in _EVENTS)
    rows = re.findall(r"`([A-Z]\w+)`", " ".join(re.findall(r"(?m)^\| (.+?) \| ", table)))
    entries, reasons = {*_entries(), *rows}, vocabulary.event_reasons()
    lacking = ", ".join(sorted(reasons - entries))
    assert not lacking, f"{lacking}: write the headings ### `REASON` with a line - Do: into events.md, then make docs"
    assert entries == reasons


def test_each_reason_of_a_delete_is_explained() -> None:
    """The message of the Event NodePoolDeletionStarted ends in one of these reasons."""
    said = {reason.value.replace("_", " ") for reason in DeleteReason}
    assert set(re.findall(r"(?m)^  \| `([a-z ]+)` \|", _entries()["NodePoolDeletionStarted"])) == said


def test_each_warning_and_error_of_the_log_has_an_entry() -> None:
    """The test also finds entries about log lines that were removed."""
    names = {*_rows(_LOG)}
    assert _unmatched(vocabulary.log_events(), names) == ([], [])
    assert {name for name in names if name.startswith("check.")} == {
        "check.crashed",
        *(f"check.{status.value}" for status in Status if status is not Status.OK),
    }


def _unsaid(quote: str) -> list[str]:
    """Return the parts of a quotation that are not in the code; dots and words in capitals are placeholders."""
    pieces = [piece.strip() for piece in re.split(r"\.\.\.|\b[A-Z]{1,9}\b(?:/[A-Z]+)?", quote) if piece.strip(" :")]
    return [piece for piece in pieces if piece not in vocabulary.words()]


def test_each_line_of_readyz_and_healthz_is_in_the_code() -> None:
    assert [name for name in _rows(_READINESS) if _unsaid(name)] == []


@pytest.mark.parametrize("page", [_EVENTS[0], _SYMPTOMS[0]])
def test_each_quotation_is_in_the_code(page: str) -> None:
    """Items and rows begin with quotations, in which three dots and words in capitals are placeholders."""
    text = (_DOCS / page).read_text("utf-8").partition(_READINESS)[0]
    quoted = [
        quote
        for start in re.findall(r"(?m)^ *(?:- |\| )((?:(?:, )?`[^`]+`)+)(?:: | \|)", text)
        for quote in re.findall(r"`([^`]+)`", start)
    ]
    assert len(quoted) >= 5
    for quote in set(quoted) - _OF_KUBERNETES:
        assert _unsaid(quote) == [], quote


def test_collectors_find_known_names() -> None:
    """If a collector found nothing, every page would appear complete."""
    assert len(vocabulary.event_reasons()) >= 17
    assert {"watch\\.failed", "round\\.crashed", "check\\..+"} <= vocabulary.log_events()
