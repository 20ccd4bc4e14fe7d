"""Every kind of workloads has what each part of the program asks of it."""

from __future__ import annotations

from provisioner.model.workloads import WorkloadKind
from provisioner.slices.offline.expand import templates_of
from provisioner.workloads import KINDS, PLAIN_JOB


def test_every_kind_is_read() -> None:
    """Plain Jobs come last, for pods of other kinds may be pods of Jobs."""
    assert KINDS.keys() == {*WorkloadKind}
    assert [*KINDS.values()][-1] is PLAIN_JOB


def test_every_kind_has_its_words() -> None:
    """An API version with its group, and what messages call its groups and their size."""
    for kind in WorkloadKind:
        assert kind.api_version.count("/") == 1
        assert (kind.group_title.isalpha(), kind.size_field.isalpha()) == (True, True)


def test_every_kind_can_be_planned() -> None:
    """It is known where its templates are."""
    paths = {templates_of(kind, {"spec": {"replicatedJobs": [{}]}})[0].path for kind in WorkloadKind}
    assert len(paths) == len(WorkloadKind)
