"""Decides about objects as if they had all just been created in a cluster without node pools or other workloads."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from provisioner import constants
from provisioner.kube import fields
from provisioner.model import bounds
from provisioner.model.capacity import NodePoolRequest
from provisioner.model.choices import CapacityChoice
from provisioner.model.placement import SHARED, labels_of, slice_key
from provisioner.model.volumes import with_volumes
from provisioner.model.workloads import Pod, Requirements, Toleration, Workload, WorkloadUid, workload_ref
from provisioner.settings import Settings, read_settings
from provisioner.settings.forms import region_of
from provisioner.slices.demand import Slice, SliceId, allowlists
from provisioner.slices.demand.capacity_requests import with_slices
from provisioner.slices.demand.slices import read_preferences
from provisioner.slices.messages.notices import EventReason, not_created
from provisioner.slices.messages.waits import NO_POOL
from provisioner.slices.offline.documents import Document, Finding, Path, Severity, mappings_in, value_at
from provisioner.slices.offline.expand import Template, is_made_up
from provisioner.slices.offline.mistakes import unread_keys
from provisioner.slices.offline.paths import path_of
from provisioner.slices.offline.placement import missing_placement
from provisioner.slices.offline.reading import MOMENT, Reading, Subject, read_document, read_train_jobs, title
from provisioner.slices.planning.memory.state import Memory
from provisioner.slices.planning.pipeline import decide
from provisioner.slices.planning.plan import Notice, Plan
from provisioner.slices.planning.round import Snapshot
from provisioner.slices.planning.spec.specification import Candidates, pool_name
from provisioner.slices.supplier import ImpossibleError, PoolRules, UnmeetableError

_PROJECT, _CLUSTER, _LOCATION, _ZONE = "GCP_PROJECT_ID", "GCP_CLUSTER", "GCP_CLUSTER_LOCATION", "GCP_ZONE"
_NAMED_ZONE = re.compile(r"\b[a-z]{1,20}-[a-z]{1,20}[0-9]{1,3}-[a-z0-9]{1,10}\b")
_ZONE_FIELDS = (*constants.ZONE_LABELS, constants.ZONES, constants.CAPACITY)
_REGION_FIELDS = (constants.REGION, constants.BETA_REGION)
_ZONE_SETTINGS = (_ZONE, "ZONES", "CAPACITY")
#: Number of characters at the start of a field that are searched for zones.
_MAX_FIELD = 4096
#: Release channel that a forecast assumes: GKE's default for new clusters.
CHANNEL = "REGULAR"
#: Number of hexadecimal digits at the end of a pool's name, which depend on the UID of the workload.
_HASH_DIGITS = 10
NOT_SERVED = "is not served: "


class Option(NamedTuple):
    """Choice of capacity for a slice, and whether it is possible."""

    choice: CapacityChoice
    #: Reason why no pool is possible with this choice; empty if a pool is possible.
    problem: str = ""


class PlannedPool(NamedTuple):
    """Node pool that would be created."""

    document: Document
    slice_: Slice
    #: Template of the slice's pods; None for a slice of a ProvisioningRequest or CapacityBuffer.
    template: Template | None
    request: NodePoolRequest
    #: Choices of capacity in the order in which the controller tries them; empty if they were not requested.
    options: tuple[Option, ...]
    #: Whether the manifest contains the UID of the object; otherwise the end of the pool's name is unknown.
    named: bool
    chips: int

    @property
    def shown_name(self) -> str:
        """Name of the pool, with `*` instead of the digits that depend on an unknown UID."""
        return self.request.name if self.named else f"{self.request.name[:-_HASH_DIGITS]}*"


class Forecast(NamedTuple):
    """Node pools that would be created for objects, and findings on the objects."""

    pools: tuple[PlannedPool, ...] = ()
    #: Findings in the order of files and lines.
    remarks: tuple[Finding, ...] = ()
    #: Kinds of `Reading.ignored` objects, each with the number of these objects and the first of them.
    ignored: tuple[tuple[str, int, Document], ...] = ()

    @property
    def all_served(self) -> bool:
        """Whether no finding reports that an object, or part of it, is rejected or not served (`Severity.refused`)."""
        return not any(finding.severity.refused for finding in self.remarks)


def forecast(
    documents: Iterable[Document],
    settings: Settings,
    rules: PoolRules,
    *,
    default_namespace: str = "default",
    options: bool = True,
) -> Forecast:
    """Read objects and decide about them. `options` has the same meaning as in `forecast_of`."""
    reading = Reading(settings=settings, default_namespace=default_namespace)
    for number, document in enumerate(documents, start=1):
        read_document(reading, document, number)
    return forecast_of(reading, rules, options=options)


def forecast_of(reading: Reading, rules: PoolRules, *, options: bool = True) -> Forecast:
    """Decide about all objects that were read. Without `options`, `PlannedPool.options` are empty, which saves time.

    Each object that is not accepted is planned separately, so that it does not use up limits of other objects.
    """
    read_train_jobs(reading)
    _add_requested_slices(reading)
    accepted = {uid: subject for uid, subject in reading.subjects.items() if subject.accepted}
    apart = [{uid: subject} for uid, subject in reading.subjects.items() if not subject.accepted]
    plan = _decide(accepted, reading, rules)
    pools = tuple(_pools(reading, plan, rules, with_options=options))
    _Remarks(reading, accepted, plan, rules).add()
    for subjects in apart:
        _Remarks(reading, subjects, _decide(subjects, reading, rules), rules).add()
    ignored = tuple((kind, *count_and_first) for kind, count_and_first in reading.ignored.items())
    return Forecast(pools=pools, remarks=tuple(_merged(reading.remarks)), ignored=ignored)


def _add_requested_slices(reading: Reading) -> None:
    """Add the slices of ProvisioningRequests and CapacityBuffers. Their PodTemplates may be in any file."""
    workloads = {uid: subject.workload for uid, subject in reading.subjects.items()}
    served, leaders = with_slices(workloads, reading.pod_templates)
    for leader in leaders:
        reading.subjects[WorkloadUid(leader.workload_uid)].pods.append(leader)
    for uid, subject in reading.subjects.items():
        subject.workload = workload = served[uid]
        if workload.capacity_request is not None and not workload.groups:
            named = title(workload.owner_kind, {"namespace": workload.namespace, "name": workload.owner_name})
            missing = ("the PodTemplate or the object that it names is not in the files", "add it")
            reading.remark(subject.document, ("spec",), named, "; ".join(workload.problem or missing))


def _decide(subjects: Mapping[WorkloadUid, Subject], reading: Reading, rules: PoolRules) -> Plan:
    pods = (_admitted(pod, subject.workload, reading.settings) for subject in subjects.values() for pod in subject.pods)
    snapshot = Snapshot(
        workloads={uid: subject.workload for uid, subject in subjects.items()},
        pods=tuple(with_volumes(pods, reading.storage)),
        pools_listed_at=MOMENT,
        namespace_labels=reading.namespace_labels,
    )
    # A decision has at most CONCURRENCY creates, but the forecast needs the pools of all slices.
    settings = replace(reading.settings, concurrency=len(snapshot.pods))
    return decide(snapshot, Memory(), settings, rules, MOMENT)


def _admitted(pod: Pod, workload: Workload, settings: Settings) -> Pod:
    """Return a pod with the toleration (ComputeClass) and the selectors (all-or-nothing) that admission would add."""
    demand, key = pod.requirements, slice_key(pod.requirements.labels)
    if name := demand.node_selector.get(constants.COMPUTE_CLASS):
        toleration = Toleration(key=constants.COMPUTE_CLASS, value=name, effect="NoSchedule")
        demand = replace(demand, tolerations=(*demand.tolerations, toleration))
    # Pods of all-or-nothing workloads need the marks of their slice, so admission is assumed to add the marks.
    together = read_preferences(demand.annotations, workload.annotations).all_or_nothing
    if key != SHARED and (settings.all_or_nothing if together is None else together):
        demand = replace(demand, node_selector={**demand.node_selector, **labels_of(key, pod.namespace)})
    return replace(pod, requirements=demand)


def _pools(reading: Reading, plan: Plan, rules: PoolRules, *, with_options: bool) -> Iterator[PlannedPool]:
    candidates, states = Candidates(reading.settings, rules), plan.states
    # Slices of one template in one zone have equal options, which are determined only once.
    options_by_key: dict[tuple[WorkloadUid, str, str], tuple[Option, ...]] = {}
    for create in plan.creates:
        slice_ = plan.decided.slices[create.slice_id]
        subject = reading.subjects[slice_.workload.uid]
        template = subject.template_of.get(slice_.group_name)
        key = (slice_.workload.uid, template.name if template is not None else "", create.request.zone)
        if key not in options_by_key:
            options_by_key[key] = tuple(_options(candidates, slice_, create.request)) if with_options else ()
        yield PlannedPool(
            document=subject.document,
            slice_=slice_,
            template=template,
            request=create.request,
            options=options_by_key[key],
            named=not is_made_up(workload_ref(slice_.workload).uid),
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


def _template_in(subject: Subject, message: str) -> Template | None:
    """Return the only template of a workload, or that of the replicated job that a message names; otherwise None."""
    # The templates of a LeaderWorkerSet's subgroups have one replicas field, and the first template represents them.
    if len({template.replicas_path for template in subject.templates}) == 1:
        return subject.templates[0]
    return next((template for template in subject.templates if f"replicated job {template.name}" in message), None)


@dataclass(slots=True)
class _Remarks:
    """Adds remarks about the workloads and slices of a decision to `reading`, most from the decision's notices."""

    reading: Reading
    subjects: Mapping[WorkloadUid, Subject]
    plan: Plan
    rules: PoolRules
    #: Workloads and templates for which `_remark_all` has added all problems.
    _searched: set[tuple[WorkloadUid, Template | None]] = field(default_factory=set)
    #: Cached paths by workload, template and message: thousands of slices may share a message.
    _paths: dict[tuple[WorkloadUid, Template | None, str], Path] = field(default_factory=dict)

    def add(self) -> None:
        """Add all remarks. Must be called only once."""
        slices = self.plan.decided.slices
        created = {create.slice_id for create in self.plan.creates}
        by_leader = {slice_.leader.uid: slice_ for slice_ in slices.values() if slice_.leader is not None}
        noticed: set[SliceId] = set()
        # A notice about pods of kind POD names their controller, whose UID may differ from the UID of their workload.
        workloads = {workload_ref(subject.workload): subject.workload for subject in self.subjects.values()}
        rejected: set[WorkloadUid] = set()
        for notice in self.plan.notices:
            slice_ = next((by_leader[ref.uid] for ref in notice.objects if ref.uid in by_leader), None)
            if slice_ is None:
                workload = workloads[notice.objects[-1]]
                rejected.add(workload.uid)
                self._remark(workload, notice.message, reason=notice.reason)
                continue
            noticed.add(slice_.id)
            if slice_.id in created:
                severity = Severity.WARNING if notice.warning else Severity.NOTE
                self._remark(slice_, notice.message, severity, reason=notice.reason)
            elif notice.reason == EventReason.INVALID_REQUEST:
                self._remark_all(slice_, notice)
            else:
                self._remark(slice_, notice.message, reason=notice.reason)
        for create in self.plan.creates:
            self._remark_not_placed(slices[create.slice_id])
        for slice_ in slices.values():
            if slice_.leader is not None and slice_.id not in created | noticed and slice_.workload.uid not in rejected:
                self._remark_not_served(slice_, slice_.requirements)
        with_slices = {slice_id.workload_uid for slice_id in slices}
        for uid, subject in self.subjects.items():
            workload = subject.workload
            if workload.managed_by and subject.pods and uid not in with_slices:
                manager = bounds.cut(workload.managed_by)
                message = f"spec.managedBy is {manager}: another controller runs it, so it gets no node pools here"
                self._remark(workload, message, Severity.NOTE)
            elif workload.problem and uid not in rejected:
                # The decision has no notice about the problem of a workload that is not served.
                requirements = next((group.template for group in workload.groups if group.template.chips > 0), None)
                if requirements is not None and self._remark_not_served(workload, requirements):
                    self._remark(workload, not_created(workload))

    def _remark_not_served(self, about: Slice | Workload, requirements: Requirements) -> bool:
        """Add a remark if pods are not served; return whether that may be a mistake of the user."""
        workload = about.workload if isinstance(about, Slice) else about
        found = self.plan.decided.policy.why_not(workload, requirements)
        if found is not None:
            severity = Severity.NOTE if found.meant else Severity.NOT_SERVED
            self._remark(about, f"{NOT_SERVED}{'; '.join(found.why)}", severity)
        return found is not None and not found.meant

    def _remark_not_placed(self, slice_: Slice) -> None:
        workload = slice_.workload
        labels = self.reading.namespace_labels.get(workload.namespace, {})
        if labels.get(constants.PLACEMENT) == constants.PLACEMENT_ASSIGN:
            return
        subject = self.subjects[workload.uid]
        template = subject.template_of.get(slice_.group_name)
        path = template.path if template is not None else ()
        raw = fields.mapping(value_at(subject.document.raw, path)) if template is not None else {}
        if message := missing_placement(slice_, raw):
            # The annotation that the message names is not in the file, so the remark is about the template.
            self._remark(slice_, message, Severity.WARNING, path=path)

    def _remark_all(self, slice_: Slice, first: Notice) -> None:
        """Add remarks about all problems of a template's slices. The notice `first` may have only one of them."""
        key = (slice_.workload.uid, self.subjects[slice_.workload.uid].template_of.get(slice_.group_name))
        problems = {} if key in self._searched else _problems_of(slice_, self.reading.settings, self.rules)
        self._searched.add(key)
        messages = {
            first.message if problem == slice_.workload.problem else f"{NO_POOL}{'; '.join(problem)}": impossible
            for problem, impossible in problems.items()
        }
        for message, impossible in {first.message: False, **messages}.items():
            self._remark(slice_, message, reason=first.reason, impossible=impossible)

    def _remark(
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
        if isinstance(about, Slice) and is_made_up(workload_ref(workload).uid):
            # The message may name the pool of another slice of the workload, so any hash becomes `*`.
            stem = re.escape(pool_name(workload.name, about.id, 0)[:-_HASH_DIGITS])
            message = re.sub(rf"\b({stem})[0-9a-f]{{{_HASH_DIGITS}}}\b", r"\1*", message)
        template = subject.template_of.get(group) if group else _template_in(subject, message)
        key = (workload.uid, template, message.replace(group, "") if group else message)
        if key not in self._paths:
            self._paths[key] = path_of(message, subject.document.raw, template) if path is None else path
        self.reading.remarks.append(
            Finding(
                document=subject.document,
                path=self._paths[key],
                subject=title(workload.owner_kind, {"namespace": workload.namespace, "name": workload.owner_name}),
                reason=reason,
                message=message,
                severity=severity,
                group_name=group,
                impossible=impossible,
            )
        )


def _problems_of(slice_: Slice, settings: Settings, rules: PoolRules) -> dict[tuple[str, ...], bool]:
    """Return the problems of a slice, each with the value of `Finding.impossible`.

    All problems of annotations and namespace are returned and, if no choice is possible, one problem of each choice.
    """
    problems = dict.fromkeys(slice_.preferences.problems.values(), True)
    namespace = allowlists.namespace_problem(slice_.workload.namespace, settings)
    if namespace:
        problems[namespace] = False
    correct = replace(slice_, preferences=replace(slice_.preferences, problems={}))
    candidates = Candidates(replace(settings, allowed_namespaces=None), rules)
    of_choices: dict[tuple[str, ...], bool] = {}
    try:
        for choice in candidates.choices(correct).open:
            try:
                candidates.specification(correct, choice)
            except UnmeetableError as error:
                of_choices[error.args] = isinstance(error, ImpossibleError)
            else:
                return problems
    except UnmeetableError as error:
        return {**problems, error.args: isinstance(error, ImpossibleError)}
    return {**problems, tuple(clause for problem in of_choices for clause in problem): all(of_choices.values())}


def _merged(remarks: Iterable[Finding]) -> list[Finding]:
    """Merge remarks with equal texts apart from the name of a group, and count their slices. Sort by file and line."""
    merged: dict[tuple[str, int | Path, str, str, str, Severity], Finding] = {}
    for remark in remarks:
        message = remark.message.replace(remark.group_name, "") if remark.group_name else remark.message
        key = (
            remark.document.source,
            remark.line or remark.path,
            remark.subject,
            remark.reason,
            message,
            remark.severity,
        )
        before = merged.get(key)
        merged[key] = remark if before is None else before._replace(slices=before.slices + 1)
    order = {source: place for place, source in enumerate(dict.fromkeys(key[0] for key in merged))}
    return sorted(
        merged.values(), key=lambda remark: (order[remark.document.source], remark.line, remark.subject, remark.message)
    )


def settings_by_object(variables: Mapping[str, str]) -> Callable[[Document], Settings]:
    """Return a function that returns the settings for an object, whose zones determine a missing location or zone."""
    settings = read_settings(variables, inferred=assumed(variables)).on_channel(CHANNEL)
    if not {_LOCATION, _ZONE} & assumed(variables).keys():
        return lambda _: settings
    return lambda document: read_settings(variables, inferred=assumed(variables, (document,))).on_channel(CHANNEL)


def assumed(variables: Mapping[str, str], documents: Iterable[Document] = ()) -> dict[str, str]:
    """Return values for required variables that are not set: from zones in variables or objects, or placeholders."""
    given = {name: variables.get(name, "").strip() for name in (_PROJECT, _CLUSTER, _LOCATION, *_ZONE_SETTINGS)}
    named = [zone for name in _ZONE_SETTINGS for zone in _NAMED_ZONE.findall(given[name])]
    named += _zones_of(documents)
    location = given[_LOCATION] or (region_of(named[0]) if named else "your-region1")
    zones = [zone for zone in named if region_of(zone) == region_of(location)]
    zonal_location = location if location != region_of(location) else ""
    placeholders = {
        _PROJECT: "your-project",
        _CLUSTER: "your-cluster",
        _LOCATION: location,
        _ZONE: zonal_location or (zones[0] if zones else f"{location}-a"),
    }
    return {name: text for name, text in placeholders.items() if not given[name]}


def _zones_of(documents: Iterable[Document]) -> Iterator[str]:
    """Yield zones in fields of objects, such as selectors and annotations; for a region, its zone "a"."""
    for document in documents:
        unread = {path for path, _ in unread_keys(document.value)}
        for path, mapping in mappings_in(document.value):
            for key in (*_ZONE_FIELDS, *_REGION_FIELDS):
                if (*path, key) in unread:
                    continue
                affinity = fields.sequence(mapping.get("values"))[:1]
                selects = mapping.get("key") == key and mapping.get("operator") == "In"
                for text in affinity if selects else [mapping.get(key)]:
                    if isinstance(text, str):
                        zone = f"{text}-a" if key in _REGION_FIELDS else text
                        yield from _NAMED_ZONE.findall(zone[:_MAX_FIELD])
