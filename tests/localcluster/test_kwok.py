"""Tests of the configuration of kwok. The end-to-end tests show that kwok accepts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rehearsal import localcluster


@pytest.mark.parametrize("annotation", [localcluster.RUN_FOR, localcluster.FAIL_AFTER, localcluster.OWN_KUBELET])
def test_annotation_is_in_a_condition_of_a_stage(annotation: str) -> None:
    """The YAML file repeats the annotations, because it cannot refer to constants in Python."""
    text = Path(localcluster.__file__).with_name("kwok.yaml").read_text(encoding="utf-8")

    assert f'.metadata.annotations["{annotation}"]' in text
