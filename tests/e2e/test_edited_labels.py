"""Tests of an edited label with the pool of a node, on a real control plane: no pool under work is deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from provisioner import constants
from provisioner.kube.live import KeptError
from provisioner.kube.protocol import object_path
from provisioner.model.capacity import PoolName
from provisioner.model.membership import Membership
from provisioner.slices.app import make_gate
from provisioner.slices.planning.plan import DeleteReason
from tests.e2e.assigning import nodes_of, running, train
from tests.e2e.kit import Ground, await_round
from tests.support.controller import a_delete
from tests.support.objects import Json

pytestmark = pytest.mark.e2e

#: The shortest possible delays before a pool without nodes or work is deleted.
_SHORT = {"NODEPOOL_DELETION_DELAY": "1s", "NODE_MIN_LIFESPAN": "0s", "NODEPOOL_READY_TIMEOUT": "3s"}
#: Longer than all of these delays, and than the pause between two deletes that the gate rejected.
_PATIENCE = timedelta(seconds=8)


def test_pool_under_work_is_kept_while_the_label_of_its_nodes_is_edited(alone: Ground) -> None:
    process = alone.provisioner(environment=_SHORT)
    for name in ("a", "b"):
        alone.post(train(alone, name))
    alone.wait(lambda: len(running(alone)) == 4, "all pods run")
    uids = {pod["metadata"]["uid"] for pod in running(alone)}
    pool, (edited, other) = alone.pools()[0], (each.name for each in alone.pools())
    first, second = sorted(node.name for node in pool.nodes)
    # Either JobSet may run on a pool that was created for the other one.
    (user,) = (pod["metadata"]["labels"][constants.JOBSET_NAME] for pod in running(alone) if _is_on(pod, first))
    for restarts in (False, True):
        for nodes, value in (([first], None), ([first, second], None), ([first, second], "x"), ([second], other)):
            for node in nodes:
                label = {"metadata": {"labels": {constants.NODE_POOL: value}}}
                alone.api.patch(object_path("nodes", node), label)
            await_round(process, alone.api, after=datetime.now(UTC) + _PATIENCE)
            assert alone.accepted("nodePools.delete") == 0, (nodes, value)
        if not restarts:
            assert process.stop() == 0
            process = alone.provisioner(environment=_SHORT)
    assert {pod["metadata"]["uid"] for pod in running(alone)} == uids
    assert alone.accepted("nodePools.create") == 2
    # The gate does not use the plan's nodes of a pool: it looks for them among all nodes of the cluster.
    gate = make_gate(alone.api, lambda: datetime.now(UTC))
    membership = Membership(listed={PoolName(edited), PoolName(other)})
    delete = a_delete(
        edited,
        DeleteReason.NOT_NEEDED,
        namespace=alone.namespace,
        workload_name=user,
        workload_uid="",
        hosts=2,
        membership=membership,
    )
    with pytest.raises(KeptError, match=f"{alone.namespace}/{user}-w-0-0-.* on {pool.nodes[0].name[:16]}"):
        gate.pass_through(delete)
    # Work that ends frees the pool in spite of the labels.
    alone.delete(user)
    alone.await_gone(edited)
    assert [pool.name for pool in alone.pools()] == [other]
    assert len(nodes_of(running(alone))) == 1


def _is_on(pod: Json, node: str) -> bool:
    return bool(pod["spec"]["nodeName"] == node)
