"""Tests of the calls of the node group supplier: failures of the API server, and the requests that are sent."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from provisioner import constants
from provisioner.kube import errors
from provisioner.kube.errors import ClusterError
from provisioner.kube.live import find_nodes_of_pool
from provisioner.kube.protocol import object_path
from provisioner.model.capacity import FailureKind, OperationName, PoolName, PoolStatus
from provisioner.model.membership import Membership
from provisioner.slices.supplier import SupplierError
from provisioner.slices.suppliers.nodegroup.supplier import API_ROOT, NodeGroupSupplier
from tests.slices.suppliers.nodegroup.test_translate import REQUEST, SETTINGS
from tests.support.clock import FakeClock
from tests.support.kube import FakeKube
from tests.support.nodegroup_controller import SPEC
from tests.support.settings import settings

K = FailureKind
NAME = REQUEST.name


class Ground:
    """A supplier on a fake API server."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.clock = FakeClock()
        self.supplier = NodeGroupSupplier(api=self.kube, settings=SETTINGS, clock=self.clock.now)

    def create(self) -> OperationName:
        return self.supplier.create_pool(REQUEST, lambda: None)

    def path(self, name: str = NAME) -> str:
        return object_path("tpunodegroups", name, namespace=SETTINGS.node_groups_in, root=API_ROOT)


@pytest.fixture
def ground() -> Ground:
    return Ground()


CALLS: dict[str, tuple[str, Callable[[Ground], object]]] = {
    "list": ("GET", lambda ground: ground.supplier.list_pools()),
    "get": ("GET", lambda ground: ground.supplier.get_pool(NAME)),
    "create": ("POST", lambda ground: ground.create()),
    "delete": ("DELETE", lambda ground: ground.supplier.delete_pool(NAME)),
}


@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (errors.Unavailable("gone away"), (K.UNAVAILABLE, K.UNAVAILABLE, K.UNKNOWN_OUTCOME, K.UNKNOWN_OUTCOME)),
        (errors.Malformed("no JSON"), (K.UNAVAILABLE, K.UNAVAILABLE, K.UNKNOWN_OUTCOME, K.UNKNOWN_OUTCOME)),
        (errors.TooManyRequests("later"), (K.UNAVAILABLE,) * 4),
        (errors.Unauthorized("who?", status=401), (K.PERMISSION,) * 4),
        (errors.Forbidden("no", status=403), (K.PERMISSION,) * 4),
        (errors.Invalid("no such field", status=422), (K.INVALID,) * 4),
        # Without a reason, 404 means that the kind TPUNodeGroup is not installed.
        (errors.NotFound("404 page not found", status=404), (K.UNAVAILABLE, K.UNAVAILABLE, K.INVALID, K.INVALID)),
        # With the reason NotFound, 404 means that the namespace or the group does not exist.
        (
            errors.NotFound("not found", status=404, reason="NotFound"),
            (K.NOT_FOUND, K.NOT_FOUND, K.INVALID, K.NOT_FOUND),
        ),
        (
            errors.Conflict("uid", status=409, reason="Conflict"),
            (K.OPERATION_IN_THE_WAY, K.OPERATION_IN_THE_WAY, K.ALREADY_EXISTS, K.OPERATION_IN_THE_WAY),
        ),
        (
            errors.Conflict("object is being deleted: x already exists", status=409, reason="AlreadyExists"),
            (K.OPERATION_IN_THE_WAY,) * 4,
        ),
        (
            errors.Forbidden('tpunodegroups "x" is forbidden: exceeded quota: groups', status=403),
            (K.QUOTA,) * 4,
        ),
    ],
    ids=lambda value: f"{type(value).__name__} {value}" if isinstance(value, Exception) else "",
)
def test_error_of_the_api_server_has_the_failure_kind_of_its_call(
    ground: Ground, error: ClusterError, kinds: tuple[FailureKind, ...]
) -> None:
    for (name, (method, call)), want in zip(CALLS.items(), kinds, strict=True):
        if name == "delete":
            ground.kube.put_object(ground.path(), {"metadata": {"namespace": "slices"}, "spec": SPEC})
        ground.kube.fail(method, "tpunodegroups", error)
        with pytest.raises(SupplierError) as caught:
            call(ground)
        assert caught.value.failure.kind is want, name
        assert "TPUNodeGroup" in caught.value.subject


def test_forbidden_call_names_the_rights_to_grant(ground: Ground) -> None:
    ground.kube.fail("POST", "tpunodegroups", errors.Forbidden("no", status=403))
    with pytest.raises(SupplierError, match="create and delete of tpunodegroups"):
        ground.create()


def test_delete_is_limited_to_the_uid_that_was_read(ground: Ground) -> None:
    """The group may have been deleted and created again after the read."""
    ground.create()
    real = ground.kube.delete
    seen = []

    def delete(path: str, *, uid: str = "", **parts: object) -> dict[str, object]:
        seen.append(uid)
        return real(path, uid=uid)

    ground.kube.delete = delete  # type: ignore[method-assign]
    ground.supplier.delete_pool(NAME)
    assert seen == ["uid-1"]


def test_operation_of_a_deleted_group_is_not_found_if_a_new_group_has_its_name(ground: Ground) -> None:
    first = ground.create()
    deleted = ground.supplier.delete_pool(NAME)
    second = ground.create()
    with pytest.raises(SupplierError) as caught:
        ground.supplier.get_operation(first)
    assert caught.value.failure.kind is K.NOT_FOUND
    assert ground.supplier.get_operation(deleted).done
    assert not ground.supplier.get_operation(second).done


def test_operation_of_a_group_that_waits_for_a_limit_has_not_failed(ground: Ground) -> None:
    """A failure would count as a rejected create, and the slice would back off."""
    operation = ground.create()
    raw = ground.kube.object(ground.path())
    assert raw is not None
    ready = {"type": "Ready", "status": "False", "reason": "LimitReached", "message": "full"}
    ground.kube.put_object(ground.path(), {**raw, "status": {"conditions": [ready]}})
    assert ground.supplier.get_pool(NAME).failure is not None
    found = ground.supplier.get_operation(operation)
    assert (found.done, found.failure) == (False, None)


@pytest.mark.parametrize("name", ["", "create", "create/x", "create/x/", "destroy/x/1"])
def test_invalid_operation_name_is_not_found(ground: Ground, name: str) -> None:
    with pytest.raises(SupplierError) as caught:
        ground.supplier.get_operation(OperationName(name))
    assert caught.value.failure.kind is K.NOT_FOUND


def test_unreadable_group_is_listed_as_unknown_and_not_deleted(ground: Ground) -> None:
    """The name of the group is in use, so its pool must not count as deleted."""
    ground.kube.put_object(ground.path("odd"), {"metadata": {"namespace": "Not a namespace"}, "spec": SPEC})
    (pool,) = ground.supplier.list_pools()
    assert (pool.name, pool.status) == ("odd", PoolStatus.UNKNOWN)
    assert ground.supplier.get_pool(PoolName("odd")).status is PoolStatus.UNKNOWN
    with pytest.raises(SupplierError, match="cannot be read"):
        ground.supplier.delete_pool(PoolName("odd"))
    assert not ground.supplier.get_operation(OperationName("create/odd/1")).done


def test_wait_of_an_unchanged_group_ends_in_an_error(ground: Ground) -> None:
    """A group that has not changed is evaluated again with each list, because its wait may have ended."""
    body = {"metadata": {"namespace": "slices", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": SPEC}
    ground.kube.put_object(ground.path(), body)
    statuses = []
    for _ in range(2):
        statuses += [pool.status for pool in ground.supplier.list_pools()]
        ground.clock.advance(601)
    assert statuses[-1] is PoolStatus.ERROR


def test_groups_of_other_namespaces_are_not_listed(ground: Ground) -> None:
    path = object_path("tpunodegroups", "theirs", namespace="other", root=API_ROOT)
    ground.kube.put_object(path, {"metadata": {"namespace": "other"}, "spec": SPEC})
    assert ground.supplier.list_pools() == ()


_PREFIX = f"{NAME}-mig-0123abcd"


@pytest.mark.parametrize(
    ("node", "namespace", "is_found", "is_unknown"),
    [
        pytest.param("n", "slices", True, False, id="namespace of the groups"),
        pytest.param("n", "others", False, False, id="namespace of another tenant"),
        pytest.param("n", None, False, True, id="no namespace"),
        pytest.param(f"{_PREFIX}-4fg7", None, True, False, id="no namespace, name of a machine of the pool"),
        pytest.param(f"{_PREFIX}-4fg7.c.p-1.internal", None, True, False, id="no namespace, such a name with a domain"),
    ],
)
def test_labels_of_a_node_without_the_namespace_of_the_groups_are_not_believed(
    ground: Ground, node: str, namespace: str | None, *, is_found: bool, is_unknown: bool
) -> None:
    """A tenant can set all labels of its nodes except the namespace label, which the controller adds later."""
    label = {} if namespace is None else {constants.TRUSTED_GROUP_NAMESPACE: namespace}
    metadata = {"labels": {constants.NODE_POOL: NAME, **label}}
    ground.kube.put_object(object_path("nodes", node), {"metadata": metadata})
    membership = Membership(by_prefix={_PREFIX: PoolName(NAME)}, listed={PoolName(NAME)})
    trusted = settings(provider="gce", node_group_namespace="slices").node_namespace
    nodes, unknown = find_nodes_of_pool(ground.kube, PoolName(NAME), 2, membership, trusted)
    assert ([match.name for match in nodes] == [node], unknown == {node}) == (is_found, is_unknown)
