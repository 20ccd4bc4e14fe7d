"""Decides about objects as if they were in a cluster without node pools, nodes and back-offs.

All objects are planned as if they were created at the same time, with no other workloads in the cluster.
"""

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
from provisioner.model.volumes import with_volumes
from provisioner.model.workloads import Pod, Requirements, Toleration, Workload, WorkloadUid, workload_ref
from provisioner.settings import Settings, read_settings
from provisioner.settings.forms import region_of
from provisioner.slices.demand import Slice, SliceId, allowlists
from provisioner.slices.demand.asks import with_slices
from provisioner.slices.demand.slices import read_wishes
from provisioner.slices.messages.notices import not_created
from provisioner.slices.messages.waits import NO_POOL
from provisioner.slices.offline.documents import Document, Finding, Path, Severity, mappings_in, value_at
from provisioner.slices.offline.expand import Template, is_made_up
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
#: Pattern of a zone: a region and one more part.
_NAMED_ZONE = re.compile(r"\b[a-z]{1,20}-[a-z]{1,20}[0-9]{1,3}-[a-z0-9]{1,10}\b")
_ZONE_FIELDS = (*constants.ZONE_LABELS, constants.ZONES, constants.CAPACITY)
_REGION_FIELDS = (constants.REGION, constants.BETA_REGION)
_ZONE_SETTINGS = (_ZONE, "ZONES", "CAPACITY")
#: Maximum number of characters of a field in which a zone is searched.
_MAX_FIELD = 4096
#: Assumed release channel of the cluster, which new clusters have by default.
CHANNEL = "REGULAR"
#: Number of digits at the end of a pool's name that depend on the UID.
_HASH_DIGITS = 10
#: Start of the message about ignored pods that request chips.
NOT_SERVED = "is not served: "


class Option(NamedTuple):
    """Choice of capacity for a slice."""

    choice: CapacityChoice
    #: Why no pool of this choice can be specified; empty if a pool can be.
    problem: str = ""


class PlannedPool(NamedTuple):
    """Node pool that would be created."""

    document: Document
    slice_: Slice
    #: Template of the slice's group; None if the workload has no pods of its own.
    template: Template | None
    request: NodePoolRequest
    #: Choices in the order in which they are tried.
    options: tuple[Option, ...]
    #: Whether the name is final, because the manifest has the UID of the object.
    named: bool
    chips: int

    @property
    def shown_name(self) -> str:
        """The name, with `*` instead of digits that are not known yet."""
        return self.request.name if self.named else shown_name(self.request.name)


class Forecast(NamedTuple):
    """Result of the decision."""

    pools: tuple[PlannedPool, ...] = ()
    #: Findings in the order of files and lines.
    remarks: tuple[Finding, ...] = ()
    #: Kind, number of its objects that request no chips, and the first of them.
    ignored: tuple[tuple[str, int, Document], ...] = ()

    @property
    def all_served(self) -> bool:
        """Whether every object that requests chips gets node pools."""
        return not any(finding.severity.refused for finding in self.remarks)


def forecast(
    documents: Iterable[Document],
    settings: Settings,
    rules: PoolRules,
    *,
    default_namespace: str = "default",
    options: bool = True,
) -> Forecast:
    """Decide about all objects together; see `forecast_of`."""
    reading = Reading(settings=settings, default_namespace=default_namespace)
    for number, document in enumerate(documents, start=1):
        read_document(reading, document, number)
    return forecast_of(reading, rules, options=options)


def forecast_of(reading: Reading, rules: PoolRules, *, options: bool = True) -> Forecast:
    """Decide about all objects that were read. Pools have `options` only on request: finding these takes long.

    Rejected and unserved objects (`Subject.accepted`) are planned separately, so that they do not use up limits.
    """
    read_train_jobs(reading)
    _add_slices_of_asks(reading)
    accepted = {uid: each for uid, each in reading.subjects.items() if each.accepted}
    apart = [{uid: each} for uid, each in reading.subjects.items() if not each.accepted]
    plan = _decide(accepted, reading, rules)
    pools = tuple(_pools(reading, plan, rules, with_options=options))
    _Remarks(reading, accepted, plan, rules).add()
    for subjects in apart:
        _Remarks(reading, subjects, _decide(subjects, reading, rules), rules).add()
    ignored = tuple((kind, *found) for kind, found in reading.ignored.items())
    return Forecast(pools=pools, remarks=tuple(_merged(reading.remarks)), ignored=ignored)


def _add_slices_of_asks(reading: Reading) -> None:
    """Add the slices of ProvisioningRequests and CapacityBuffers, after the templates of all files have been read."""
    found, leaders = with_slices({uid: each.workload for uid, each in reading.subjects.items()}, reading.pod_templates)
    for leader in leaders:
        reading.subjects[WorkloadUid(leader.workload_uid)].pods.append(leader)
    for uid, subject in reading.subjects.items():
        subject.workload = workload = found[uid]
        if workload.ask is not None and not workload.groups:
            named = title(workload.owner_kind, {"namespace": workload.namespace, "name": workload.owner_name})
            message = workload.problem or "the PodTemplate or the object that it names is not in the files; add it"
            reading.remark(subject.document, ("spec",), named, message)


def _decide(subjects: Mapping[WorkloadUid, Subject], reading: Reading, rules: PoolRules) -> Plan:
    pods = (_admitted(pod, subject.workload, reading.settings) for subject in subjects.values() for pod in subject.pods)
    snapshot = Snapshot(
        workloads={uid: each.workload for uid, each in subjects.items()},
        pods=tuple(with_volumes(pods, reading.storage)),
        pools_listed_at=MOMENT,
        namespace_labels=reading.namespace_labels,
    )
    # The number of threads must not limit the creates of this decision.
    settings = replace(reading.settings, concurrency=len(snapshot.pods))
    return decide(snapshot, Memory(), settings, rules, MOMENT)


def _admitted(pod: Pod, workload: Workload, settings: Settings) -> Pod:
    """Return a pod with the toleration that GKE adds for its ComputeClass, and the marks of the placement policy."""
    asked, key = pod.requirements, slice_key(pod.requirements.labels)
    if name := asked.node_selector.get(constants.COMPUTE_CLASS):
        own = Toleration(key=constants.COMPUTE_CLASS, value=name, effect="NoSchedule")
        asked = replace(asked, tolerations=(*asked.tolerations, own))
    # The slices of a marked all-or-nothing workload start together.
    together = read_wishes(asked.annotations, workload.annotations).all_or_nothing
    if key and (settings.all_or_nothing if together is None else together):
        asked = replace(asked, node_selector={**asked.node_selector, **labels_of(key, pod.namespace)})
    return replace(pod, requirements=asked)


def shown_name(name: str) -> str:
    """Return the name of a pool with `*` instead of its last digits, which are not known yet."""
    return f"{name[:-_HASH_DIGITS]}*"


def _pools(reading: Reading, plan: Plan, rules: PoolRules, *, with_options: bool) -> Iterator[PlannedPool]:
    candidates, states = Candidates(reading.settings, rules), plan.states
    # The slices of a template have the same options, which are found only once.
    known: dict[tuple[WorkloadUid, str, str], tuple[Option, ...]] = {}
    for create in plan.creates:
        slice_ = plan.decided.slices[create.slice_id]
        subject = reading.subjects[slice_.workload.uid]
        template = subject.template_of.get(slice_.group_name)
        key = (slice_.workload.uid, template.name if template is not None else "", create.request.zone)
        if key not in known:
            known[key] = tuple(_options(candidates, slice_, create.request)) if with_options else ()
        yield PlannedPool(
            document=subject.document,
            slice_=slice_,
            template=template,
            request=create.request,
            options=known[key],
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
    """Return the template that a message about a workload names; None if the message names none of several."""
    # The templates of subgroups have the number of groups in the same field, so any of them will do.
    if len({template.replicas_path for template in subject.templates}) == 1:
        return subject.templates[0]
    return next((template for template in subject.templates if f"replicated job {template.name}" in message), None)


@dataclass(slots=True)
class _Remarks:
    """Adds remarks about the slices of a decision, with the texts of the notices."""

    reading: Reading
    subjects: Mapping[WorkloadUid, Subject]
    plan: Plan
    rules: PoolRules
    #: Templates of whose slices all problems have been added.
    _searched: set[tuple[WorkloadUid, Template | None]] = field(default_factory=set)
    #: Paths of messages: thousands of slices of a template may have the same message, and a path takes long to find.
    _paths: dict[tuple[WorkloadUid, Template | None, str], Path] = field(default_factory=dict)

    def add(self) -> None:
        """Add all remarks."""
        slices = self.plan.decided.slices
        created = {create.slice_id for create in self.plan.creates}
        by_leader = {each.leader.uid: each for each in slices.values() if each.leader is not None}
        noticed: set[SliceId] = set()
        rejected: set[WorkloadUid] = set()
        for notice in self.plan.notices:
            slice_ = next((by_leader[ref.uid] for ref in notice.objects if ref.uid in by_leader), None)
            uid = WorkloadUid(notice.objects[-1].uid)
            if slice_ is None:
                rejected.add(uid)
                self._remark(self.subjects[uid].workload, notice.message, reason=notice.reason)
                continue
            noticed.add(slice_.id)
            if slice_.id in created:
                severity = Severity.WARNING if notice.warning else Severity.NOTE
                self._remark(slice_, notice.message, severity, reason=notice.reason)
            elif notice.reason == constants.INVALID_REQUEST:
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
                words = f"spec.managedBy is {manager}: another controller runs it, so it gets no node pools here"
                self._remark(workload, words, Severity.NOTE)
            elif workload.problem and uid not in rejected:
                # If the workload is not served for another reason, no Event reports the problem: both are added here.
                asked = next((group.template for group in workload.groups if group.template.chips > 0), None)
                if asked is not None and self._remark_not_served(workload, asked):
                    self._remark(workload, not_created(workload))

    def _remark_not_served(self, about: Slice | Workload, requirements: Requirements) -> bool:
        """Add a remark why pods are not served; return whether that may be a mistake."""
        workload = about.workload if isinstance(about, Slice) else about
        found = self.plan.decided.policy.why_not(workload, requirements)
        if found is not None:
            self._remark(about, f"{NOT_SERVED}{found.why}", Severity.NOTE if found.meant else Severity.NOT_SERVED)
        return found is not None and not found.meant

    def _remark_not_placed(self, slice_: Slice) -> None:
        """Warn if the pods of a slice may be on several pools, unless its namespace in the files has the label."""
        workload = slice_.workload
        labels = self.reading.namespace_labels.get(workload.namespace, {})
        if labels.get(constants.PLACEMENT) == constants.PLACEMENT_ASSIGN:
            return
        subject = self.subjects[workload.uid]
        template = subject.template_of.get(slice_.group_name)
        path = template.path if template is not None else ()
        raw = fields.mapping(value_at(subject.document.raw, path)) if template is not None else {}
        if message := missing_placement(slice_, raw):
            # The field that the message names does not exist, so the path is that of the template.
            self._remark(slice_, message, Severity.WARNING, path=path)

    def _remark_all(self, slice_: Slice, first: Notice) -> None:
        """Add all problems of a template's slices; the decision has only the first problem, for each slice."""
        key = (slice_.workload.uid, self.subjects[slice_.workload.uid].template_of.get(slice_.group_name))
        found = {} if key in self._searched else _problems_of(slice_, self.reading.settings, self.rules)
        self._searched.add(key)
        first_problem = next((each for each in found if first.message.endswith(f": {each}")), "")
        impossible = found.pop(first_problem, False)
        self._remark(slice_, first.message, reason=first.reason, impossible=impossible)
        for problem, each in found.items():
            self._remark(slice_, f"{NO_POOL}{problem}", reason=first.reason, impossible=each)

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
            # The pool may be that of another slice, which shares it.
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


def _problems_of(slice_: Slice, settings: Settings, rules: PoolRules) -> dict[str, bool]:
    """Return the problems of a slice as in the Event, each with whether the problem would prevent any provider.

    All problems of annotations and of the namespace are found, and the first of the other problems.
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
    """Merge remarks that differ only in the name of the slice; sort by file and line."""
    found: dict[tuple[str, int | Path, str, str, str, Severity], Finding] = {}
    for each in remarks:
        words = each.message.replace(each.group_name, "") if each.group_name else each.message
        key = (each.document.source, each.line or each.path, each.subject, each.reason, words, each.severity)
        before = found.get(key)
        found[key] = each if before is None else before._replace(slices=before.slices + 1)
    order = {source: place for place, source in enumerate(dict.fromkeys(key[0] for key in found))}
    return sorted(found.values(), key=lambda each: (order[each.document.source], each.line, each.subject, each.message))


def settings_by_object(variables: Mapping[str, str]) -> Callable[[Document], Settings]:
    """Return a function from an object to its settings; the object's region is used if no setting names one."""
    own = read_settings(variables, inferred=assumed(variables)).on_channel(CHANNEL)
    if not {_LOCATION, _ZONE} & assumed(variables).keys():
        return lambda _: own
    return lambda document: read_settings(variables, inferred=assumed(variables, (document,))).on_channel(CHANNEL)


def assumed(variables: Mapping[str, str], documents: Iterable[Document] = ()) -> dict[str, str]:
    """Return placeholders for the variables that are not set; if no setting names the region, from the objects."""
    given = {name: variables.get(name, "").strip() for name in (_PROJECT, _CLUSTER, _LOCATION, *_ZONE_SETTINGS)}
    named = [zone for name in _ZONE_SETTINGS for zone in _NAMED_ZONE.findall(given[name])]
    named += _zones_of(documents)
    location = given[_LOCATION] or (region_of(named[0]) if named else "your-region1")
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
    """Yield the zones in selectors, node affinity and annotations of objects; for a region, the region's zone "a"."""
    for document in documents:
        for _, found in mappings_in(document.value):
            for key in (*_ZONE_FIELDS, *_REGION_FIELDS):
                affinity = fields.sequence(found.get("values"))[:1]
                selects = found.get("key") == key and found.get("operator") == "In"
                for text in affinity if selects else [found.get(key)]:
                    if isinstance(text, str):
                        zone = f"{text}-a" if key in _REGION_FIELDS else text
                        yield from _NAMED_ZONE.findall(zone[:_MAX_FIELD])
