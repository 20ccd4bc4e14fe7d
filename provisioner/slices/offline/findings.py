"""What is found of an object."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from provisioner.slices.offline.documents import Document, Path, dotted


class Severity(Enum):
    """What a finding means for the object."""

    #: The API server or the provisioner rejects it, or a part of it: there is no node pool.
    ERROR = "error"
    #: The provisioner leaves it alone and says nothing of it: there is no node pool, which may be meant.
    NOT_SERVED = "not_served"
    #: There is a node pool, and something about it is probably not meant.
    WARNING = "warning"
    #: Nothing has to be done.
    NOTE = "note"

    @property
    def refused(self) -> bool:
        """Whether there is no node pool."""
        return self in (Severity.ERROR, Severity.NOT_SERVED)


class Finding(NamedTuple):
    """Something that is said of an object."""

    document: Document
    #: Of the field that it is about, which need not be there; empty: the object as a whole.
    path: Path
    message: str
    severity: Severity
    #: Kind, namespace and name; empty for what the API server rejects in the text of the object.
    subject: str = ""
    #: Of the Event that says so; empty where no Event does.
    reason: str = ""
    #: The slice that it is about; empty where it is about all.
    group_name: str = ""
    #: How many slices it is about.
    slices: int = 1
    #: Nobody's nodes serve it: Google sells none like that, or the object contradicts itself.
    impossible: bool = False

    @property
    def line(self) -> int:
        """The line of the field; 0 where there is no text."""
        return self.document.line_of(self.path)

    @property
    def field(self) -> str:
        """The field as Kubernetes writes it, such as "spec.replicatedJobs[0].replicas"; empty for the object."""
        return dotted(self.path)

    def __str__(self) -> str:
        times = f" ({self.slices} slices)" if self.slices > 1 else ""
        place = f"{self.document.source}:{self.line}" if self.line else self.field
        return ": ".join(filter(None, (place, self.subject, self.reason, f"{self.message}{times}")))
