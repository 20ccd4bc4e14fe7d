"""Tests of the pictures in docs/status-page.md, and of the states of the status page in docs/concepts.md."""

from __future__ import annotations

import re
from pathlib import Path

from provisioner.slices.metrics import SPLIT
from provisioner.slices.planning.memory.state import Phase
from provisioner.slices.view.types import STATES, State
from tests.page.screenshots import LARGE, MAX_BYTES, PICTURES

_ROOT = Path(__file__).parents[2]
_PAGE = (_ROOT / "docs" / "status-page.md").read_text("utf-8")
_CONCEPTS = (_ROOT / "docs" / "concepts.md").read_text("utf-8")
_FOLDER = _ROOT / "docs" / "pictures"


def test_each_picture_exists_and_is_on_the_page() -> None:
    names = {f"{name}.webp" for name, *_ in [*PICTURES, (LARGE,)]}
    assert {path.name for path in _FOLDER.iterdir()} == names
    assert set(re.findall(r"\]\(pictures/([^)]+)\)", _PAGE)) == names
    for name in names:
        assert (_FOLDER / name).stat().st_size <= MAX_BYTES


def test_states_have_the_same_text_on_both_pages() -> None:
    """The table in docs/concepts.md has the order and the texts of the status page, and the phases of metrics."""
    script = (_ROOT / "provisioner" / "slices" / "page" / "states.js").read_text("utf-8")
    words, helps = (
        dict(re.findall(r'^  (\w+): "([^"]+)",$', part.partition("};")[0], re.MULTILINE))
        for part in script.split("export const STATE")[1:3]
    )
    assert set(words) == set(helps) == {state.value for state in State}
    table = re.findall(r"^\| ([A-Z][a-z ]+) \|([^|]*)\|[^|]*\| ([^|]+) \|$", _CONCEPTS, re.MULTILINE)
    rows = {word: meaning for word, _, meaning in table}
    explained = {words[state]: (helps[state][0].lower() + helps[state][1:]).partition(":")[0] for state in words}
    assert list(rows) == list(explained)
    for word, meaning in explained.items():
        assert rows[word].startswith(meaning), word
    phases = {word: re.findall(r"`(\w+)`", shown) for word, shown, _ in table}
    of_states = {words[state]: [phase.value for phase, of in STATES.items() if of is state] for state in State}
    others = {
        words[State.REJECTED]: [Phase.BLOCKED.value],
        words[State.DRAINING]: of_states[words[State.RUNNING]],
        words[State.SPLIT]: [SPLIT],
    }
    assert phases == {**of_states, **others}
