"""Tests that no comment, docstring or test name breaks a rule of prose.py, and tests of these rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.prose import Passage, hits
from tests.docs.shell import ROOT

_FOLDERS = ("provisioner", "tests", "rehearsal", "generators", "benchmarks", "docs")


@pytest.mark.timeout(60)  # Reads a thousand files.
def test_no_passage_is_odd() -> None:
    found = [f"{passage.path}:{passage.line}: {passage.text}" for passage, _ in hits(map(ROOT.joinpath, _FOLDERS))]
    assert found == [], "for advice, run: python -m tests.docs.prose FOLDER"


@pytest.mark.parametrize(
    ("kind", "text", "rule"),
    [
        pytest.param("function", "Say what the caller gets.", "free relative", id="free relative"),
        pytest.param("comment", "Nobody reads the rest.", "actor", id="actor"),
        pytest.param("field", "Of the pods that wait.", "fragment", id="fragment"),
        pytest.param("field", "Its nodes are gone.", "pronoun", id="pronoun"),
        pytest.param("field", "The limit; None: there is none.", "gloss", id="gloss"),
        pytest.param("function", "Return the pool, None where there is none.", "where", id="where"),
        pytest.param("comment", "The read is made anew.", "vocabulary", id="vocabulary"),
        pytest.param("comment", "Pods wait; of three one is bound.", "inversion", id="inversion"),
        pytest.param("function", "Tell the reason.", "telling", id="telling"),
        pytest.param("test", "Also after a restart.", "continuation", id="continuation"),
        pytest.param("test name", "test_who_waits_is_told", "test name", id="name of a test"),
    ],
)
def test_odd_passage_is_found(kind: str, text: str, rule: str) -> None:
    assert rule in {broken_rule.name for broken_rule in Passage(Path("file.py"), 1, kind, text).broken()}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        pytest.param("function", "Return the pools of a workload, empty if the workload has none yet.", id="docstring"),
        pytest.param("field", "Number of chips by namespace.", id="noun phrase"),
        pytest.param("comment", 'The header "what is this" is rejected.', id="quotation"),
        pytest.param("test name", "test_pool_of_a_deleted_workload_is_deleted", id="name of a test"),
    ],
)
def test_plain_passage_is_not_found(kind: str, text: str) -> None:
    assert Passage(Path("file.py"), 1, kind, text).broken() == []
