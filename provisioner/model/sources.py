"""Names optional sources of data, such as APIs that a cluster may lack or forbid, and the states of a source."""

from enum import Enum

#: Names of sources. The plural of each optional kind of workload, such as rayclusters, is also a name.
MACHINE_CONFIGS = "machineconfigs"
RESOURCE_SLICES = "resourceslices"
POD_TEMPLATES = "podtemplates"
CLAIMS = "persistentvolumeclaims"
VOLUMES = "persistentvolumes"
STORAGE_CLASSES = "storageclasses"
HINTS = "hints"
RESERVATIONS = "reservations"


class Knowledge(Enum):
    """State of one source in this process. No decision may depend on the content of a source that is UNKNOWN."""

    #: The source was read completely, and its changes have been received since then.
    KNOWN = "known"
    #: The source has not been read yet, or cannot be read, for example because a permission is missing.
    UNKNOWN = "unknown"
    #: The cluster does not have the API.
    ABSENT = "absent"
