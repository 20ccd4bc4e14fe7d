"""What is wrong with one object, told before it is there: for an admission webhook."""

from __future__ import annotations

import itertools
from dataclasses import replace

from provisioner.settings import Settings
from provisioner.slices.demand import Slice
from provisioner.slices.offline.documents import Document
from provisioner.slices.offline.findings import Finding, Severity
from provisioner.slices.offline.forecast import Forecast, forecast_of, template_of
from provisioner.slices.offline.reading import Reading, read_document
from provisioner.slices.planning.launch import limits
from provisioner.slices.supplier import PoolRules

#: Slices of each template that stand for all of them: the first one, and the last one, whose name is the longest.
_SAMPLE = 2
#: Where limits do not allow all slices, so many of an object are looked at to find the first that is refused.
_MOST_WITHIN_LIMITS = 256
_ORDER = {severity: place for place, severity in enumerate(Severity)}


def judge(raw: object, settings: Settings, rules: PoolRules, *, namespace: str = "default") -> tuple[Finding, ...]:
    """Return what the provisioner would say of an object if it were created now, in a cluster without any node pool.

    `raw` is the object as decoded JSON: a JobSet, LeaderWorkerSet, Job or Pod, or one of any other kind whose pods
    may request chips, such as a StatefulSet. `namespace` is where it is created if it does not say so itself.
    OPT_IN_LABEL is not judged: the labels of the namespace are not known.

    Errors come first. Of each finding `message` has the words of the Event, if the provisioner would send one, and
    `reason` its reason; `field` is the field that it is about, such as "spec.replicatedJobs[0].replicas", and `path`
    the same as keys and indexes. `severity` tells errors, which leave a slice without a node pool, from what the
    provisioner does not serve, which is no mistake where somebody else makes the nodes.

    Nothing is read and nothing is raised, whatever the JSON is. The time depends on the size of the object (bounded by
    whoever decodes it) and not on what it asks for: the slices of one template are alike, so two of each stand for
    all. Only where limits (MAX_CHIPS and others) do not allow all of them, as many are looked at as are needed to find
    the first that is refused, but no more than 256: a limit of more slices than that is left to the Event. `slices` is
    not counted, and always 1.
    """
    settings, document = replace(settings, opt_in_label=None), Document(raw)

    def look(most_of_template: int) -> tuple[Reading, Forecast]:
        reading = Reading(settings, namespace, most_of_template=most_of_template)
        read_document(reading, document, 1)
        return reading, forecast_of(reading, rules)

    reading, found = look(_SAMPLE)
    if _exceeds_limits(reading, found):
        templates = max(1, sum(len(each.templates) for each in reading.subjects.values()))
        _, found = look(max(_SAMPLE, _MOST_WITHIN_LIMITS // templates))
    every = (each._replace(slices=1) for each in (*found.problems, *found.remarks))
    return tuple(sorted(every, key=lambda each: _ORDER[each.severity]))


def namespace_of(document: Document, default: str) -> str:
    """Return where an object is created."""
    metadata = document.raw.get("metadata")
    own = metadata.get("namespace") if isinstance(metadata, dict) else None
    return own if isinstance(own, str) and own else default


def _exceeds_limits(reading: Reading, found: Forecast) -> bool:
    """Whether limits do not allow all slices of the objects at once, of which those found are a sample."""
    first: dict[int, tuple[Slice, int]] = {}
    for slice_ in found.slices:
        subject = reading.subjects[slice_.workload.uid]
        template = template_of(subject, slice_.group_name)
        if slice_.leader is not None and template is not None:
            first.setdefault(template.place, (slice_, template.replicas))
    every = itertools.chain.from_iterable(itertools.repeat(*each) for each in first.values())
    return bool(limits.problem_of(every, reading.settings))
