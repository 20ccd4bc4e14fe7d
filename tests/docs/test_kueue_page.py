"""docs/kueue.md: what Kueue would add to a JobSet, by the page's own flavors, leads to the pools that the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner import constants
from provisioner.model.capacity import CapacityKind
from provisioner.model.workloads import Toleration
from tests.support.models import CHIP_TOLERATION, make_jobset, make_requirements
from tests.support.world import World

_PAGE = (Path(__file__).parents[2] / "docs" / "kueue.md").read_text("utf-8")
_OBJECTS = list(yaml.safe_load_all(re.findall(r"(?s)```yaml\n(.*?)```", _PAGE)[0]))
_FLAVORS: dict[str, Any] = {
    each["metadata"]["name"]: each["spec"] for each in _OBJECTS if each["kind"] == "ResourceFlavor"
}


def _admitted(labels: dict[str, str], tolerations: tuple[Toleration, ...] = ()) -> World:
    """Return a world with a JobSet of v6e as Kueue resumes it: with the flavor's labels and tolerations."""
    template = make_requirements(
        accelerator="tpu-v6e-slice", topology="4x4", selector=labels, tolerations=(CHIP_TOLERATION, *tolerations)
    )
    return World(make_jobset("train", template=template, parallelism=4))


@pytest.mark.parametrize(
    ("flavor", "capacity"),
    [
        pytest.param("v6e", CapacityKind.ON_DEMAND, id="a flavor that says nothing of the terms"),
        pytest.param("v6e-spot", CapacityKind.SPOT, id="a flavor of spot capacity"),
    ],
)
def test_the_flavors_of_the_page(flavor: str, capacity: CapacityKind) -> None:
    """The provisioner follows the selectors that Kueue adds."""
    spec = _FLAVORS[flavor]
    tolerations = tuple(
        Toleration(key=each["key"], operator=each["operator"], value=each["value"], effect=each["effect"])
        for each in spec.get("tolerations", ())
    )

    (create,) = _admitted(spec["nodeLabels"], tolerations).step().creates

    assert create.request.capacity is capacity


def test_the_queue_names_the_flavors() -> None:
    """Each flavor of the page, and nothing else, has a quota of chips."""
    queue = next(each for each in _OBJECTS if each["kind"] == "ClusterQueue")
    (group,) = queue["spec"]["resourceGroups"]
    assert group["coveredResources"] == [constants.TPU_RESOURCE]
    assert [each["name"] for each in group["flavors"]] == list(_FLAVORS)
