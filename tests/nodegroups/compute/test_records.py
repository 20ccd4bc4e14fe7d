"""What the records of Compute Engine say of themselves."""

import pytest

from provisioner.nodegroups.compute.records import ManagedInstance, Scope

_ZONE = Scope(project="p", zone="us-central1-a")


@pytest.mark.parametrize(
    ("scope", "path"),
    [
        pytest.param(_ZONE, "projects/p/zones/us-central1-a", id="zonal"),
        pytest.param(Scope(project="p", region="us-central1"), "projects/p/regions/us-central1", id="regional"),
        pytest.param(
            Scope(project="example.com:p"), "projects/example.com:p/global", id="global, of a domain's project"
        ),
    ],
)
def test_a_scope_is_written_as_in_addresses(scope: Scope, path: str) -> None:
    assert scope.path == path


def test_a_managed_instance_names_its_node_as_the_kubelet_does() -> None:
    machine = ManagedInstance(name="a-mig-x1b2", scope=_ZONE, status="RUNNING")

    assert machine.provider_id == "gce://p/us-central1-a/a-mig-x1b2"
    assert machine.has_machine


def test_a_placeholder_of_a_bulk_operation_has_no_machine() -> None:
    assert not ManagedInstance(name="a-mig-x1b2", scope=_ZONE, action="CREATING").has_machine
