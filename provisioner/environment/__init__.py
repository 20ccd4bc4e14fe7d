"""The TPU environment of pods: which worker each is, who the others are, and the grid of chips they share.

Decisions are pure: a pod and its owner, as raw JSON, go in; a patch and warnings come out.
"""

from provisioner.environment.inject import Injected, Injection, Settings, Wrong, inject
from provisioner.environment.numbering import OwnerKey, jobset_key, owner_to_read, stateful_set_key
from provisioner.environment.pods import TpuPod, read_pod

__all__ = [
    "Injected",
    "Injection",
    "OwnerKey",
    "Settings",
    "TpuPod",
    "Wrong",
    "inject",
    "jobset_key",
    "owner_to_read",
    "read_pod",
    "stateful_set_key",
]
