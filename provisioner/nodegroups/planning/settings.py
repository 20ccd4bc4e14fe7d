"""What the administrator decides, as far as node groups are concerned."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningSettings:
    """Lists of what is allowed, times and limits."""

    #: What machines that are to join the cluster run at each boot (`bootstrap.script`).
    startup_script: str
    #: Projects in which resources may be made; none: the project that the provisioner runs in.
    projects: frozenset[str] = frozenset()
    #: Namespaces whose objects are served; none: all.
    namespaces: frozenset[str] = frozenset()
    #: Machines that the objects of one namespace may have together; 0: any number.
    machines_per_namespace: int = 0
    #: Hash of the manifest that the device plugin is to be applied from; empty: it is not our job.
    device_plugin_version: str = ""
    #: A slice is made anew when a machine of it has been lost for so long, and so often within a day.
    repair_after_seconds: float = 300.0
    repairs_per_day: int = 3
    #: A machine that runs has so long to become a node that is ready, before it counts as lost.
    join_seconds: float = 1800.0
    #: So long pods without chips may keep the machines of a group that is deleted; those with chips always may.
    drain_seconds: float = 3600.0
    #: Calls to Compute Engine per second of each sort that it counts (changes, reads, lists, polls of operations) in a
    #: project, for each region and globally; and so many seconds' worth of them at once. It counts by the minute, and
    #: allows 1,500 calls unless another quota was agreed on: these are 1,400 at most.
    calls_per_second: float = 20.0
    burst_seconds: float = 10.0
    #: Calls under way at once.
    most_calls: int = 64
