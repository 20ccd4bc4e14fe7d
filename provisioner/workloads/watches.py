"""The watches of workloads and of their pods, each with its selector on the server's side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from provisioner import kube
from provisioner.kube.watches import UNFINISHED, watch_namespaced
from provisioner.model.workloads import Pod, Workload
from provisioner.workloads.kind import Kind
from provisioner.workloads.pods import parse_pod


def watch_workloads(
    api: kube.Api,
    kind: Kind,
    *,
    on_change: Callable[[], None],
    namespaces: Sequence[str] = (),
    options: kube.WatchOptions = kube.WATCH_DEFAULTS,
) -> kube.Watch[Workload]:
    """Watch the objects of one kind, finished ones too; no namespaces means all."""
    collection = kube.Collection(
        name=kind.plural,
        resource=kind.resource,
        root=kind.root,
        query={"labelSelector": kind.selector} if kind.selector else {},
        install_hint=kind.install_hint,
        optional=kind.optional,
    )
    return watch_namespaced(
        api,
        [collection],
        kind.parse,
        on_change=on_change,
        namespaces=namespaces,
        options=options,
    )


def watch_pods(
    api: kube.Api,
    kinds: Iterable[Kind],
    *,
    on_change: Callable[[], None],
    namespaces: Sequence[str] = (),
    options: kube.WatchOptions = kube.WATCH_DEFAULTS,
) -> kube.Watch[Pod]:
    """Watch the unfinished pods of some kinds of workloads that ask for chips; no namespaces means all."""
    collections = [
        kube.Collection(name="pods", resource="pods", query={"labelSelector": selector, "fieldSelector": UNFINISHED})
        for selector in dict.fromkeys(kind.pod_selector for kind in kinds)
    ]
    return watch_namespaced(api, collections, parse_pod, on_change=on_change, namespaces=namespaces, options=options)
