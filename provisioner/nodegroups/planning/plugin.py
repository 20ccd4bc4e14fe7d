"""The device plugin's DaemonSet, one for all groups: applied while there are any, and when its manifest changes."""

from __future__ import annotations

from provisioner.nodegroups.api import names
from provisioner.nodegroups.planning.round import NOTHING, Proposed, Round, Step
from provisioner.nodegroups.planning.writes import ApplyDevicePlugin


def step_of(round_: Round) -> Step:
    """Propose to apply it where it is not there, or was applied from another manifest."""
    version, plugin = round_.settings.device_plugin_version, round_.snapshot.device_plugin
    found = plugin.version if plugin is not None else ""
    needed = any(
        names.CLEANUP_DEVICE_PLUGIN in group.meta.finalizers and not group.meta.deleting
        for group in round_.groups.values()
    )
    if not version or not needed or found == version:
        return NOTHING
    return Step(writes=(Proposed(write=ApplyDevicePlugin(version=version), seen=found),))
