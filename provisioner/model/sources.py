"""Knowledge of the optional sources of facts: APIs that a cluster may lack, or that may be forbidden. Pure.

One rule holds for all sources: no decision depends on the contents of an unknown source.
"""

from enum import Enum

#: Names of sources that are not the resource of a kind of workloads.
MACHINE_CONFIGS = "machineconfigs"
RESOURCE_SLICES = "resourceslices"
POD_TEMPLATES = "podtemplates"
CLAIMS = "persistentvolumeclaims"
VOLUMES = "persistentvolumes"
STORAGE_CLASSES = "storageclasses"
HINTS = "hints"
RESERVATIONS = "reservations"


class Knowledge(Enum):
    """State of one source."""

    #: The source was read completely in this process, and has been followed since then.
    KNOWN = "known"
    #: The source was not read yet, is forbidden, or fails.
    UNKNOWN = "unknown"
    #: The cluster does not have the API.
    ABSENT = "absent"
