"""Tests of whether a pod fits a node, as the scheduler decides, and of labels that GKE will set on expected nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner import constants
from provisioner.model.capacity import Taint
from provisioner.model.fit import NodeView, label_misfit, misfit, trusted
from provisioner.model.fits import Fits
from provisioner.model.workloads import Expression, Requirements, Toleration, Volumes, Workload
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.planning.contention.limits import Budget
from provisioner.slices.planning.contention.line import CREATES, in_line, unit_of
from provisioner.slices.planning.match import Matcher
from provisioner.slices.planning.plan import Plan
from provisioner.slices.planning.round import begin_round
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from tests.support.models import make_jobset, make_requirements
from tests.support.settings import settings
from tests.support.world import World


def view(**changes: Any) -> NodeView:
    fields: dict[str, Any] = {
        "labels": {"zone": "a", "size": "10", "word": "ten"},
        "taints": (),
        "chips": 4,
        "cpu_millicores": 2000,
        "memory_bytes": 2**31,
        "other_bytes": {"hugepages-2Mi": 0},
        "name": "node-1",
    }
    return NodeView(**fields | changes)


def asks(**changes: Any) -> Any:
    return make_requirements(**{"node_selector": {}, "tolerations": ()} | changes)


@pytest.mark.parametrize(
    ("key", "operator", "values", "holds"),
    [
        ("zone", "In", ("a", "b"), True),
        ("zone", "In", ("b",), False),
        ("none", "In", ("a",), False),
        ("zone", "NotIn", ("b",), True),
        ("zone", "NotIn", ("a",), False),
        ("none", "NotIn", ("a",), True),
        ("zone", "Exists", (), True),
        ("none", "Exists", (), False),
        ("none", "DoesNotExist", (), True),
        ("zone", "DoesNotExist", (), False),
        ("size", "Gt", ("9",), True),
        ("size", "Gt", ("10",), False),
        ("size", "Lt", ("11",), True),
        ("size", "Lt", ("10",), False),
        ("word", "Gt", ("1",), False),
        ("none", "Lt", ("1",), False),
        ("size", "Gt", (), False),
        ("size", "Lt", ("1_1",), False),
        ("size", "Lt", (" 11",), False),
        ("size", "Lt", ("+0011",), True),
        ("size", "Lt", ("9223372036854775807",), True),
        ("size", "Lt", ("9223372036854775808",), False),
        ("zone", "Near", ("a",), False),
    ],
)
def test_operator_of_node_affinity_holds_as_in_the_scheduler(
    *, key: str, operator: str, values: tuple[str, ...], holds: bool
) -> None:
    term = (Expression(key=key, operator=operator, values=values),)
    assert (misfit(asks(affinity_terms=(term,)), view()) == ()) is holds


def test_affinity_holds_if_all_expressions_of_any_term_hold() -> None:
    yes, no = Expression(key="zone", operator="Exists"), Expression(key="none", operator="Exists")
    assert misfit(asks(affinity_terms=((yes, no), (yes,))), view()) == ()
    assert "affinity" in misfit(asks(affinity_terms=((yes, no), (no,))), view())[0]


def test_field_expression_is_compared_with_the_node_name() -> None:
    term = (Expression(key="metadata.name", operator="In", values=("node-1",), on_field=True),)
    assert misfit(asks(affinity_terms=(term,)), view()) == ()
    assert misfit(asks(affinity_terms=(term,)), view(name="node-2"))


@pytest.mark.parametrize(
    ("taint", "toleration", "fits"),
    [
        pytest.param(Taint(key="k", value="v"), None, False, id="NoSchedule without toleration"),
        pytest.param(Taint(key="k", effect="PreferNoSchedule"), None, True, id="PreferNoSchedule without toleration"),
        pytest.param(Taint(key="k", effect="NoExecute"), None, False, id="NoExecute without toleration"),
        pytest.param(Taint(key="k", value="v"), Toleration(key="k", value="v"), True, id="Equal with the same value"),
        pytest.param(Taint(key="k", value="v"), Toleration(key="k", value="w"), False, id="Equal with another value"),
        pytest.param(
            Taint(key="k", value="v"), Toleration(key="k", operator="Exists"), True, id="Exists without a value"
        ),
        pytest.param(Taint(key="k"), Toleration(key="j", operator="Exists"), False, id="another key"),
        pytest.param(Taint(key="k"), Toleration(operator="Exists"), True, id="Exists without a key"),
        pytest.param(Taint(key="k"), Toleration(), False, id="Equal without a key"),
        pytest.param(
            Taint(key="k", effect="NoExecute"),
            Toleration(key="k", operator="Exists", effect="NoSchedule"),
            False,
            id="toleration of another effect",
        ),
    ],
)
def test_taints_and_tolerations_decide_the_fit_as_in_the_scheduler(
    *, taint: Taint, toleration: Toleration | None, fits: bool
) -> None:
    found = misfit(asks(tolerations=(toleration,) if toleration else ()), view(taints=(taint,)))
    assert (found == ()) is fits
    assert fits or f"{taint.key}={taint.value}:{taint.effect}" in found[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"chips": 5}, "requests 5 chips, the node offers 4 to pods"),
        ({"cpu_millicores": 2001}, "requests 2.001 cpu, the node offers 2 to pods"),
        ({"memory_bytes": 2**31 + 1}, "requests 2.1Gi memory, the node offers 2Gi to pods"),
        ({"other_bytes": (("hugepages-2Mi", 2**21),)}, "requests 2Mi hugepages-2Mi, the node offers 0Mi to pods"),
        ({"node_selector": {"zone": "b"}}, "selects zone=b, the node has zone=a"),
        ({"node_selector": {"rack": "1"}}, "selects rack=1, the node has no label rack"),
    ],
)
def test_reason_names_the_request_and_the_value_of_the_node(changes: dict[str, Any], words: str) -> None:
    assert words in "; ".join(misfit(asks(**changes), view()))


@pytest.mark.parametrize("selected", [{}, {constants.TPU_DRA_DRIVER: "true"}])
@pytest.mark.parametrize("labels", [{}, {constants.TPU_DRA_DRIVER: "true"}])
def test_only_pods_of_the_dra_driver_fit_its_nodes(selected: dict[str, str], labels: dict[str, str]) -> None:
    """Nodes of the DRA driver have no google.com/tpu, and other nodes have no devices for resource claims."""
    assert (misfit(asks(node_selector=selected), view(labels=labels)) == ()) is (selected == labels)


_KEYS = st.sampled_from(
    ["zone", "size", "kubernetes.io/unheard-of", "cloud.google.com/gke-spot", constants.TPU_DRA_DRIVER, constants.ZONE]
)
_WORDS = st.sampled_from(["", "a", "b", "9", "10", "010", "-1", "node-1", "true"])
_EFFECTS = st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"])
_AMOUNTS = st.integers(0, 3)
_VOLUMES = st.builds(
    Volumes,
    zones=st.none() | st.sampled_from([(), ("a",), ("a", "b")]),
    problem=st.sampled_from(["", "", "", "is not bound"]),
)
_RESOURCES = st.sampled_from(["ephemeral-storage", "hugepages-2Mi"])
_VIEWS = st.builds(
    NodeView,
    labels=st.dictionaries(_KEYS, _WORDS, max_size=3),
    taints=st.lists(st.builds(Taint, key=_KEYS, value=_WORDS, effect=_EFFECTS), max_size=2).map(tuple),
    chips=_AMOUNTS,
    cpu_millicores=_AMOUNTS,
    memory_bytes=_AMOUNTS,
    other_bytes=st.dictionaries(_RESOURCES, _AMOUNTS, max_size=2),
    name=_WORDS,
    predicted=st.booleans(),
)
_EXPRESSIONS = st.builds(
    Expression,
    key=_KEYS,
    operator=st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Near"]),
    values=st.lists(_WORDS, max_size=3).map(tuple),
    on_field=st.booleans(),
)
_REQUIREMENTS = st.builds(
    Requirements,
    chips=_AMOUNTS,
    cpu_millicores=_AMOUNTS,
    memory_bytes=_AMOUNTS,
    other_bytes=st.dictionaries(_RESOURCES, _AMOUNTS, max_size=2).map(lambda found: tuple(found.items())),
    volumes=st.none() | _VOLUMES,
    node_selector=st.dictionaries(_KEYS, _WORDS, max_size=1),
    affinity_terms=st.lists(st.lists(_EXPRESSIONS, max_size=3).map(tuple), max_size=2).map(tuple),
    tolerations=st.lists(
        st.builds(
            Toleration,
            key=st.one_of(st.just(""), _KEYS),
            operator=st.sampled_from(["Equal", "Exists"]),
            value=_WORDS,
            effect=st.one_of(st.just(""), _EFFECTS),
        ),
        max_size=2,
    ).map(tuple),
)


@given(st.lists(_VIEWS, max_size=6), st.lists(_REQUIREMENTS, min_size=1, max_size=3))
def test_fits_returns_the_results_of_checking_each_node_separately(
    views: list[NodeView], asked: list[Requirements]
) -> None:
    """One `Fits` checks several requirements, because its caches must not mix up their results."""
    fits = Fits(views)
    for requirements in asked:
        assert _listed(fits.fitting(requirements), len(views)) == [not misfit(requirements, view) for view in views]
        assert _listed(fits.selected(requirements), len(views)) == [
            not label_misfit(requirements, view) for view in views
        ]


def _listed(found: int, count: int) -> list[bool]:
    assert 0 <= found < 1 << count
    return [bool(found >> place & 1) for place in range(count)]


class _Term(tuple[Expression, ...]):
    """A term that counts how often it is iterated."""

    __slots__ = ()
    looks = 0

    def __iter__(self) -> Iterator[Expression]:
        _Term.looks += 1
        return super().__iter__()


@pytest.mark.parametrize("idle_pools", [1, 8])
def test_matching_evaluates_the_affinity_of_a_pod_once_for_all_idle_pools(idle_pools: int) -> None:
    """Each pod avoids one node of every pool, so none fits. No two pods share an affinity term."""
    asked = make_requirements(topology="2x2x2")
    gone = make_jobset("gone", replicas=idle_pools, parallelism=2, template=asked)
    world = World(gone)
    world.step()
    world.finish_creates()
    world.schedule()
    world.look()
    world.finish(gone)
    names = sorted(world.nodes)
    for number in range(6):
        avoided = Expression(key="metadata.name", operator="NotIn", values=(*names[number % 2 :: 2],), on_field=True)
        own = Expression(key=f"example.com/{number}", operator="DoesNotExist")
        hostile = replace(asked, memory_bytes=number, affinity_terms=(_Term((own, avoided)),))
        world.add(make_jobset(f"hostile-{number}", parallelism=2, template=hostile))
    ctx = begin_round(world.snapshot(), world.memory, world.settings, GKE_RULES, world.now)
    _Term.looks = 0
    line = in_line(CREATES, [unit_of(slice_, world.now) for slice_ in ctx.slices.values() if slice_.pending], {})
    matching = Matcher(ctx, Budget.of(ctx), line, ()).run(lambda *_: None)
    assert (len(ctx.owned), len(matching.unserved), matching.claimed) == (idle_pools, 6, {})
    assert _Term.looks == 6


# --- Selectors on labels that GKE sets ---


_STRANGE = "cloud.google.com/gke-of-tomorrow"


def _jobset(name: str = "train", **selector: str) -> Workload:
    return make_jobset(name, template=make_requirements(selector=selector, tolerations=()))


def _told(plan: Plan, reason: str) -> list[str]:
    return [notice.message for notice in plan.notices if notice.reason == reason]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("iam.gke.io/gke-metadata-server-enabled", "true"),
        ("cloud.google.com/machine-family", "ct4p"),
        ("cloud.google.com/gke-os-distribution", "cos"),
        ("cloud.google.com/gke-container-runtime", "containerd"),
        ("topology.gke.io/zone", "us-central2-b"),
        ("failure-domain.beta.kubernetes.io/zone", "us-central2-b"),
        ("failure-domain.beta.kubernetes.io/region", "us-central2"),
        ("beta.kubernetes.io/instance-type", "ct4p-hightpu-4t"),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", "amd64"),
    ],
)
def test_labels_that_gke_is_known_to_set_are_predicted(key: str, value: str) -> None:
    plan = World(_jobset(**{key: value})).step()
    assert (len(plan.creates), _told(plan, EventReason.UNKNOWN_SELECTOR)) == (1, [])
    plan = World(_jobset(**{key: "other"})).step()
    assert (len(plan.creates), len(_told(plan, EventReason.INVALID_REQUEST))) == (0, 1)


def test_boot_disk_label_is_predicted_only_if_the_setting_is_set() -> None:
    """If GKE chooses the disk type, the value of the label is unknown until the pool is listed."""
    workload = _jobset(**{constants.BOOT_DISK: "pd-ssd"})
    for setting, creates, warnings in (("pd-ssd", 1, 0), ("pd-balanced", 0, 0), ("", 1, 1)):
        plan = World(workload, settings_=settings(node_disk_type=setting)).step()
        assert (len(plan.creates), len(_told(plan, EventReason.UNKNOWN_SELECTOR))) == (creates, warnings)


@pytest.mark.parametrize("key", ["topology.gke.io/zone", "failure-domain.beta.kubernetes.io/zone"])
def test_alternative_zone_label_selects_the_zone(key: str) -> None:
    (create,) = World(_jobset(**{key: "us-central2-c"})).step().creates
    assert create.request.zone == "us-central2-c"


@pytest.mark.parametrize(
    "key",
    [
        constants.COMPUTE_CLASS,
        constants.PRIVATE_NODE,
        constants.LOCAL_SSD,
        constants.GPU_ACCELERATOR,
        constants.HOSTNAME,
        constants.RESERVATION_AFFINITY,
        constants.POOL_TOPOLOGY,
    ],
)
def test_selector_on_a_label_that_is_certainly_missing_is_rejected(key: str) -> None:
    plan = World(_jobset(**{key: "x"})).step()
    assert not plan.creates
    (message,) = _told(plan, EventReason.INVALID_REQUEST)
    assert f"the pod selects {key}=x, the node has no label {key}" in message


@pytest.mark.parametrize("key", [_STRANGE, "node.kubernetes.io/exotic", "x.gke.io/y", "scheduling.k8s.io/z"])
def test_selector_on_an_unknown_reserved_label_gets_a_pool_with_a_warning(key: str) -> None:
    """The provisioner sets none of these labels, but GKE may set them on the nodes."""
    plan = World(_jobset(**{key: "x"})).step()
    (create,) = plan.creates
    assert key not in create.request.labels
    (message,) = _told(plan, EventReason.UNKNOWN_SELECTOR)
    assert f"{key}=x" in message
    assert create.request.name in message


def _expression(operator: str, *values: str) -> Expression:
    return Expression(key=_STRANGE, operator=operator, values=values)


_SURE = Expression(key=constants.OS, operator="In", values=("linux",))


@pytest.mark.parametrize(
    ("terms", "predicted", "fits", "relies_on"),
    [
        pytest.param(((_expression("In", "a"),),), True, True, (_STRANGE,), id="In may hold"),
        pytest.param(((_expression("Exists"),),), True, True, (_STRANGE,), id="Exists may hold"),
        pytest.param(((_expression("Gt", "1"),),), True, True, (_STRANGE,), id="Gt may hold"),
        pytest.param(((_expression("NotIn", "a"),),), True, True, (), id="NotIn holds without it"),
        pytest.param(((_expression("DoesNotExist"),),), True, True, (), id="DoesNotExist holds without it"),
        pytest.param(((_expression("In", "a"),), (_SURE,)), True, True, (), id="another term certainly holds"),
        pytest.param(((_expression("In", "a"),),), False, False, (), id="existing node without the label"),
    ],
)
def test_affinity_on_an_unknown_label_fits_only_a_predicted_node(
    *, terms: Any, predicted: bool, fits: bool, relies_on: tuple[str, ...]
) -> None:
    view = NodeView(
        labels={constants.OS: "linux"}, taints=(), chips=4, cpu_millicores=2000, memory_bytes=2**31, predicted=predicted
    )
    requirements = make_requirements(node_selector={}, affinity_terms=terms)
    assert (misfit(requirements, view) == ()) is fits
    assert trusted(requirements, view) == relies_on


def _bare(world: World) -> None:
    """Create all pools, with nodes that lack the label _STRANGE."""
    world.step()
    world.finish_creates()
    world.step()
    assert not any(_STRANGE in node.labels for node in world.nodes.values())


@pytest.mark.parametrize("replace_stuck", [False, True])
def test_pool_whose_nodes_lack_a_selected_label_is_deleted(*, replace_stuck: bool) -> None:
    world = World(_jobset(**{_STRANGE: "x"}), settings_=settings(replace_stuck_slices=replace_stuck))
    _bare(world)
    for _ in range(30):
        world.step(seconds=60)
    assert len(world.created) == 1
    assert world.deleted == world.created
    (message,) = {notice.message for notice in world.told(EventReason.STUCK)}
    assert f"its nodes do not have {_STRANGE}=x: remove that selector" in message


def test_existing_nodes_are_matched_by_their_real_labels() -> None:
    for labelled in (True, False):
        first, second = _jobset("first"), _jobset("second", **{_STRANGE: "x"})
        world = World(first, settings_=settings(deletion_delay_seconds=3600.0))
        _bare(world)
        if labelled:
            world.put(*(replace(node, labels={**node.labels, _STRANGE: "x"}) for node in world.nodes.values()))
        world.finish(first)
        world.step()
        world.add(second)
        world.step()
        assert len(world.created) == (1 if labelled else 2)
