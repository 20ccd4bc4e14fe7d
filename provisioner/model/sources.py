"""Names optional sources of data, such as APIs that a cluster may lack or forbid, and the states of a source.

No decision may depend on the contents of a source that is unknown.
"""

from enum import Enum

#: Names of sources. The resources of kinds of workloads are further names.
MACHINE_CONFIGS = "machineconfigs"
RESOURCE_SLICES = "resourceslices"
POD_TEMPLATES = "podtemplates"
CLAIMS = "persistentvolumeclaims"
VOLUMES = "persistentvolumes"
STORAGE_CLASSES = "storageclasses"
HINTS = "hints"
RESERVATIONS = "reservations"


class Knowledge(Enum):
    """State of one source in this process."""

    #: The source was read completely, and its changes have been received since then.
    KNOWN = "known"
    #: The source was not read yet, is forbidden, or cannot be read.
    UNKNOWN = "unknown"
    #: The cluster does not have the API.
    ABSENT = "absent"
