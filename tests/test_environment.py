"""Tests of warnings about environment variables that resemble options, and about replaced values."""

from __future__ import annotations

import pytest

from provisioner.settings import OPTIONS, read_settings, warnings_about_environment
from tests.support.settings import REQUIRED


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("CONCURENCY", "did you mean CONCURRENCY?"),
        ("ZONE", ""),
        ("GCP_ZONES", "did you mean GCP_ZONE?"),
        ("MAX_CHIP", "did you mean MAX_CHIPS?"),
        ("NODEPOOL_DELETE_DELAY", ""),
        ("NODEPOOL_DELETION_DELAYS", "did you mean NODEPOOL_DELETION_DELAY?"),
        ("ENABLE_SLICE_CONTROLLER", "has no effect here: Slice resources are not supported"),
        ("ENABLE_WEBHOOKS", "has no effect here: webhooks are a process"),
        ("STATIC_NODEPOOL_CREATE_TIMEOUT", "has no effect here: static node pools are not supported"),
        ("SLICE_RECREATE_CONDITIONS", "has no effect here: Slice resources are not supported"),
        ("BACKOFF_MAX_DELAY", "has no effect here: the back-off is fixed"),
        ("HOME", ""),
        ("NODE_NAME", ""),
        ("KUBERNETES_SERVICE_HOST", ""),
        ("gcp_zones", ""),
    ],
)
def test_variable_is_reported_if_it_is_similar_to_an_option_or_of_the_go_provisioner(name: str, words: str) -> None:
    """A variable that resembles no option belongs to another program, so it causes no warning."""
    found = tuple(warnings_about_environment({**REQUIRED, name: "x"}))
    assert len(found) == (1 if words else 0)
    assert all(problem.startswith(f"{name} is ") and words in problem for problem in found)


def test_option_is_not_reported() -> None:
    """Names of options may be similar to each other, but a valid name must cause no suggestion."""
    assert not list(warnings_about_environment({option.variable: "" for option in OPTIONS}))


@pytest.mark.parametrize(("text", "want"), [("64", 64), ("65", 64), ("9" * 5000, 64), ("007", 7)])
def test_concurrency_above_the_maximum_is_replaced(text: str, want: int) -> None:
    environment = {**REQUIRED, "CONCURRENCY": text}
    assert read_settings(environment).concurrency == want
    assert len(list(warnings_about_environment(environment))) == (text.startswith(("65", "9")))
