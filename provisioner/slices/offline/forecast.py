"""What the provisioner would do about objects: the same decision as in a cluster, on a cluster without any node pool.

Everything is planned as if it were created at one moment, alone, with no pool, no node and no back-off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from provisioner import constants
from provisioner.kube import fields
from provisioner.model import bounds
from provisioner.model.capacity import NodePoolRequest
from provisioner.model.choices import CapacityChoice
from provisioner.model.placement import labels_of, slice_key
from provisioner.model.workloads import Pod, Requirements, Workload, WorkloadUid
from provisioner.settings import Settings, read_settings
from provisioner.settings.forms import region_of
from provisioner.slices.demand import Slice, SliceId, allowlists
from provisioner.slices.demand.asks import with_slices
from provisioner.slices.demand.slices import all_slices, read_wishes
from provisioner.slices.offline.documents import Document, Finding, Path, Severity, mappings_in, value_at
from provisioner.slices.offline.expand import Template, is_made_up
from provisioner.slices.offline.placement import missing_placement
from provisioner.slices.offline.reading import MOMENT, Reading, Subject, path_of, read_document, title
from provisioner.slices.planning.decide import decide
from provisioner.slices.planning.launch.specification import Candidates, pool_name
from provisioner.slices.planning.memory.state import Memory
from provisioner.slices.planning.notices import too_large
from provisioner.slices.planning.plan import Notice, Plan
from provisioner.slices.planning.round import Snapshot
from provisioner.slices.supplier import ImpossibleError, PoolRules, UnmeetableError

_PROJECT, _CLUSTER, _LOCATION, _ZONE = "GCP_PROJECT_ID", "GCP_CLUSTER", "GCP_CLUSTER_LOCATION", "GCP_ZONE"
#: A region and one more part.
_NAMED_ZONE = re.compile(r"\b[a-z]{1,20}-[a-z]{1,20}[0-9]{1,3}-[a-z0-9]{1,10}\b")
_ZONE_FIELDS = (*constants.ZONE_LABELS, constants.ZONES, constants.CAPACITY)
_REGION_FIELDS = (constants.REGION, constants.BETA_REGION)
_ZONE_SETTINGS = (_ZONE, "ZONES", "CAPACITY")
_SOMEWHERE = "your-region1"
_MOST_OF_A_FIELD = 4096
#: The release channel of new clusters.
CHANNEL = "REGULAR"
#: The end of a pool's name, which follows from the UID.
_HASH_DIGITS = 10
#: How is said that pods which request chips are left alone.
NOT_SERVED = "is not served: "
#: How the Event of what is wrong with a slice begins.
_NO_POOL = "No TPU node pool is created: "


class Option(NamedTuple):
    """A choice of capacity for a slice."""

    choice: CapacityChoice
    #: Why no pool can be specified for it; empty: one can.
    problem: str = ""


class PlannedPool(NamedTuple):
    """A node pool that would be created."""

    document: Document
    slice_: Slice
    #: The group of the workload's specification that the slice is of.
    template: Template | None
    request: NodePoolRequest
    #: In the order in which they are tried.
    options: tuple[Option, ...]
    #: The name is what it will be, because the manifest has the UID of the object.
    named: bool
    chips: int

    @property
    def shown_name(self) -> str:
        """Its name, as far as it is known."""
        return self.request.name if self.named else shown_name(self.request.name)


class Forecast(NamedTuple):
    """What would be done."""

    pools: tuple[PlannedPool, ...] = ()
    #: By file and line.
    remarks: tuple[Finding, ...] = ()
    #: Kind, how many objects of it request no chips, and the first of them.
    ignored: tuple[tuple[str, int, Document], ...] = ()

    @property
    def all_served(self) -> bool:
        """Whether all that requests chips gets them."""
        return not any(each.severity.refused for each in self.remarks)


def forecast(
    documents: Iterable[Document], settings: Settings, rules: PoolRules, *, default_namespace: str = "default"
) -> Forecast:
    """Decide about all objects at once."""
    reading = Reading(settings=settings, default_namespace=default_namespace)
    for number, document in enumerate(documents, start=1):
        read_document(reading, document, number)
    return forecast_of(reading, rules)


def forecast_of(reading: Reading, rules: PoolRules) -> Forecast:
    """Decide about all that was read.

    What is not accepted takes nothing from the others, and is decided about alone, to find what else is wrong with it.
    """
    _add_slices_of_asks(reading)
    accepted = {uid: each for uid, each in reading.subjects.items() if each.accepted}
    apart = [{uid: each} for uid, each in reading.subjects.items() if not each.accepted]
    plan, slices = _decide(accepted, reading, rules)
    pools = tuple(_pools(reading, plan, slices, rules))
    _Verdicts(reading, accepted, plan, slices, rules).tell()
    for subjects in apart:
        plan, slices = _decide(subjects, reading, rules)
        _Verdicts(reading, subjects, plan, slices, rules).tell()
    ignored = tuple((kind, *found) for kind, found in reading.ignored.items())
    return Forecast(pools=pools, remarks=tuple(_merged(reading.remarks)), ignored=ignored)


def _add_slices_of_asks(reading: Reading) -> None:
    """Give ProvisioningRequests and CapacityBuffers their slices: what they name may come later in the files."""
    found, leaders = with_slices({uid: each.workload for uid, each in reading.subjects.items()}, reading.pod_templates)
    for leader in leaders:
        reading.subjects[WorkloadUid(leader.workload_uid)].pods.append(leader)
    for uid, subject in reading.subjects.items():
        subject.workload = workload = found[uid]
        if workload.ask is not None and not workload.groups:
            named = title(workload.kind.value, {"namespace": workload.namespace, "name": workload.name})
            message = workload.problem or "the PodTemplate or the object that it names is not in the files; add it"
            reading.remark(subject.document, ("spec",), named, message)


def _decide(
    subjects: Mapping[WorkloadUid, Subject], reading: Reading, rules: PoolRules
) -> tuple[Plan, dict[SliceId, Slice]]:
    snapshot = Snapshot(
        workloads={uid: each.workload for uid, each in subjects.items()},
        pods=tuple(_admitted(pod, each.workload, reading.settings) for each in subjects.values() for pod in each.pods),
        pools_listed_at=MOMENT,
        namespace_labels=reading.namespace_labels,
    )
    # As many threads as it takes: which creates come first is no question here.
    settings = replace(reading.settings, concurrency=len(snapshot.pods))
    plan = decide(snapshot, Memory(), settings, rules, MOMENT)
    return plan, all_slices(plan.derived.found)


def _admitted(pod: Pod, workload: Workload, settings: Settings) -> Pod:
    """Mark a pod of a workload that starts together, as the placement policy does: without it the promise is void."""
    asked, key = pod.requirements, slice_key(pod.requirements.labels)
    together = read_wishes(asked.annotations, workload.annotations).all_or_nothing
    if not key or not (settings.all_or_nothing if together is None else together):
        return pod
    selector = {**asked.node_selector, **labels_of(key, pod.namespace)}
    return replace(pod, requirements=replace(asked, node_selector=selector))


def shown_name(name: str) -> str:
    """Return the name of a pool whose last digits nobody knows yet."""
    return f"{name[:-_HASH_DIGITS]}*"


def _pools(reading: Reading, plan: Plan, slices: Mapping[SliceId, Slice], rules: PoolRules) -> Iterator[PlannedPool]:
    candidates, states = Candidates(reading.settings, rules), plan.states
    # The slices of one template have the same.
    known: dict[tuple[WorkloadUid, str, str], tuple[Option, ...]] = {}
    for create in plan.creates:
        slice_ = slices[create.slice_id]
        subject = reading.subjects[slice_.workload.uid]
        template = subject.template_of.get(slice_.group_name)
        key = (slice_.workload.uid, template.name if template is not None else "", create.request.zone)
        if key not in known:
            known[key] = tuple(_options(candidates, slice_, create.request))
        yield PlannedPool(
            document=subject.document,
            slice_=slice_,
            template=template,
            request=create.request,
            options=known[key],
            named=not is_made_up(slice_.workload.uid),
            chips=states[create.request.name].chips,
        )


def _options(candidates: Candidates, slice_: Slice, request: NodePoolRequest) -> Iterator[Option]:
    for choice in candidates.choices(slice_, request.zone).open:
        try:
            candidates.specification(slice_, choice)
        except UnmeetableError as error:
            yield Option(choice=choice, problem=str(error))
        else:
            yield Option(choice=choice)


def _named(subject: Subject, message: str) -> Template | None:
    if len(subject.templates) == 1:
        return subject.templates[0]
    return next((each for each in subject.templates if f"replicated job {each.name}" in message), None)


@dataclass(slots=True)
class _Verdicts:
    """Says what the decision came to for each slice: in the words of its notices, and where it has none in its own."""

    reading: Reading
    subjects: Mapping[WorkloadUid, Subject]
    plan: Plan
    slices: Mapping[SliceId, Slice]
    rules: PoolRules
    #: Workloads and templates of which it is told what is wrong.
    _searched: set[tuple[WorkloadUid, Template | None]] = field(default_factory=set)
    #: What slices of each template need so that their pods are on one pool.
    _not_placed: dict[tuple[WorkloadUid, Template | None], str] = field(default_factory=dict)
    #: What was found of messages on slices of one template: thousands may say the same.
    _paths: dict[tuple[WorkloadUid, Template | None, str], Path] = field(default_factory=dict)

    def tell(self) -> None:
        """Turn all into remarks."""
        created = {create.slice_id for create in self.plan.creates}
        by_leader = {each.leader.uid: each for each in self.slices.values() if each.leader is not None}
        told: set[SliceId] = set()
        rejected: set[WorkloadUid] = set()
        for notice in self.plan.notices:
            slice_ = next((by_leader[ref.uid] for ref in notice.objects if ref.uid in by_leader), None)
            uid = WorkloadUid(notice.objects[-1].uid)
            if slice_ is None:
                rejected.add(uid)
                self._say(self.subjects[uid].workload, notice.message, reason=notice.reason)
                continue
            told.add(slice_.id)
            if slice_.id in created:
                severity = Severity.WARNING if notice.warning else Severity.NOTE
                self._say(slice_, notice.message, severity, reason=notice.reason)
            elif notice.reason == constants.INVALID_REQUEST:
                self._say_all(slice_, notice)
            else:
                self._say(slice_, notice.message, reason=notice.reason)
        for create in self.plan.creates:
            self._say_not_placed(self.slices[create.slice_id])
        for slice_ in self.slices.values():
            if slice_.leader is not None and slice_.id not in created | told and slice_.workload.uid not in rejected:
                self._say_not_served(slice_, slice_.requirements)
        with_slices = {slice_id.workload_uid for slice_id in self.slices}
        for uid, subject in self.subjects.items():
            workload = subject.workload
            if workload.managed_by and subject.pods and uid not in with_slices:
                manager = bounds.cut(workload.managed_by)
                words = f"spec.managedBy is {manager}: another controller runs it, so it gets no node pools here"
                self._say(workload, words, Severity.NOTE)
            elif workload.problem and uid not in rejected:
                # No Event says so, for it is not served for other reasons as well.
                asked = next((group.template for group in workload.groups if group.template.chips > 0), None)
                if asked is not None and self._say_not_served(workload, asked):
                    self._say(workload, too_large(workload))

    def _say_not_served(self, about: Slice | Workload, requirements: Requirements) -> bool:
        """Say why pods are left alone; return whether that may be a mistake."""
        workload = about.workload if isinstance(about, Slice) else about
        found = self.plan.derived.policy.why_not(workload, requirements)
        if found is not None:
            self._say(about, f"{NOT_SERVED}{found.why}", Severity.NOTE if found.meant else Severity.NOT_SERVED)
        return found is not None and not found.meant

    def _say_not_placed(self, slice_: Slice) -> None:
        """Say that the pods of a slice may be bound to several pools; a namespace of the files may have the label."""
        workload = slice_.workload
        if (
            self.reading.namespace_labels.get(workload.namespace, {}).get(constants.PLACEMENT)
            == constants.PLACEMENT_ASSIGN
        ):
            return
        subject = self.subjects[workload.uid]
        template = subject.template_of.get(slice_.group_name)
        if (workload.uid, template) not in self._not_placed:
            raw = fields.mapping(value_at(subject.document.raw, template.path)) if template is not None else {}
            self._not_placed[workload.uid, template] = missing_placement(slice_, raw)
        if message := self._not_placed[workload.uid, template]:
            # The field that the message names does not exist.
            self._say(slice_, message, Severity.WARNING, path=template.path if template is not None else ())

    def _say_all(self, slice_: Slice, first: Notice) -> None:
        """Say what is wrong with the slices of a template; the decision tells the first thing, of each slice."""
        key = (slice_.workload.uid, self.subjects[slice_.workload.uid].template_of.get(slice_.group_name))
        found = {} if key in self._searched else _problems_of(slice_, self.reading.settings, self.rules)
        self._searched.add(key)
        told = next((each for each in found if first.message.endswith(f": {each}")), "")
        impossible = found.pop(told, False)
        self._say(slice_, first.message, reason=first.reason, impossible=impossible)
        for problem, each in found.items():
            self._say(slice_, f"{_NO_POOL}{problem}", reason=first.reason, impossible=each)

    def _say(
        self,
        about: Slice | Workload,
        message: str,
        severity: Severity = Severity.ERROR,
        *,
        reason: str = "",
        impossible: bool = False,
        path: Path | None = None,
    ) -> None:
        group, workload = (about.group_name, about.workload) if isinstance(about, Slice) else ("", about)
        subject = self.subjects[workload.uid]
        if isinstance(about, Slice) and is_made_up(workload.uid):
            name = pool_name(workload.name, about.id, 0)
            message = message.replace(name, shown_name(name))
        template = subject.template_of.get(group) if group else _named(subject, message)
        key = (workload.uid, template, message.replace(group, "") if group else message)
        if key not in self._paths:
            self._paths[key] = path_of(message, subject.document.raw, template) if path is None else path
        self.reading.remarks.append(
            Finding(
                document=subject.document,
                path=self._paths[key],
                subject=title(workload.kind.value, {"namespace": workload.namespace, "name": workload.name}),
                reason=reason,
                message=message,
                severity=severity,
                group_name=group,
                impossible=impossible,
            )
        )


def _problems_of(slice_: Slice, settings: Settings, rules: PoolRules) -> dict[str, bool]:
    """Return what is wrong with a slice, in the words of the Event, and whether nobody's nodes could serve it.

    Of what is wrong beside its annotations and its namespace, only the first thing.
    """
    found = dict.fromkeys(slice_.wishes.problems.values(), True)
    namespace = allowlists.namespace_problem(slice_.workload.namespace, settings)
    if namespace:
        found[namespace] = False
    rest = replace(slice_, wishes=replace(slice_.wishes, problems={}))
    candidates = Candidates(replace(settings, allowed_namespaces=None), rules)
    of_choices: dict[str, bool] = {}
    try:
        for choice in candidates.choices(rest).open:
            try:
                candidates.specification(rest, choice)
            except UnmeetableError as error:
                of_choices[str(error)] = isinstance(error, ImpossibleError)
            else:
                return found
    except UnmeetableError as error:
        return {**found, str(error): isinstance(error, ImpossibleError)}
    return {**found, "; ".join(of_choices): all(of_choices.values())}


def _merged(remarks: Iterable[Finding]) -> list[Finding]:
    """Put remarks together that differ in the name of the slice alone, in the order of files and lines."""
    found: dict[tuple[str, int | Path, str, str, str, Severity], Finding] = {}
    for each in remarks:
        words = each.message.replace(each.group_name, "") if each.group_name else each.message
        key = (each.document.source, each.line or each.path, each.subject, each.reason, words, each.severity)
        before = found.get(key)
        found[key] = each if before is None else before._replace(slices=before.slices + 1)
    order = {source: place for place, source in enumerate(dict.fromkeys(key[0] for key in found))}
    return sorted(found.values(), key=lambda each: (order[each.document.source], each.line, each.subject, each.message))


def settings_by_object(variables: Mapping[str, str]) -> Callable[[Document], Settings]:
    """Return the settings for an object: in its own region where no setting says the cluster's; raise SettingsError."""
    own = read_settings(variables, inferred=assumed(variables)).on_channel(CHANNEL)
    if not {_LOCATION, _ZONE} & assumed(variables).keys():
        return lambda _: own
    return lambda document: read_settings(variables, inferred=assumed(variables, (document,))).on_channel(CHANNEL)


def assumed(variables: Mapping[str, str], documents: Iterable[Document] = ()) -> dict[str, str]:
    """Return placeholders by variable; the region is that of the objects where no setting says it."""
    given = {name: variables.get(name, "").strip() for name in (_PROJECT, _CLUSTER, _LOCATION, *_ZONE_SETTINGS)}
    named = [zone for name in _ZONE_SETTINGS for zone in _NAMED_ZONE.findall(given[name])]
    named += _zones_of(documents)
    location = given[_LOCATION] or (region_of(named[0]) if named else _SOMEWHERE)
    there = [zone for zone in named if region_of(zone) == region_of(location)]
    own = location if location != region_of(location) else ""
    placeholders = {
        _PROJECT: "your-project",
        _CLUSTER: "your-cluster",
        _LOCATION: location,
        _ZONE: own or (there[0] if there else f"{location}-a"),
    }
    return {name: text for name, text in placeholders.items() if not given[name]}


def _zones_of(documents: Iterable[Document]) -> Iterator[str]:
    """Yield the zones that manifests name, by selector, node affinity or annotation; of a region the first one."""
    for document in documents:
        for _, found in mappings_in(document.value):
            for key in (*_ZONE_FIELDS, *_REGION_FIELDS):
                affinity = fields.sequence(found.get("values"))[:1]
                selects = found.get("key") == key and found.get("operator") == "In"
                for text in affinity if selects else [found.get(key)]:
                    if isinstance(text, str):
                        zone = f"{text}-a" if key in _REGION_FIELDS else text
                        yield from _NAMED_ZONE.findall(zone[:_MOST_OF_A_FIELD])
