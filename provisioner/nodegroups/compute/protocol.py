"""What is asked of Compute Engine.

- Every method is one short exchange (the pages of a list count as one), may be called from many threads, never waits
  for an operation and never tries again. An insert or delete returns as soon as Google has taken it, and says nothing
  about how it will end. Every method raises `ComputeError` and nothing else.
- **Idempotent by request id.** The same changing call sent again with its request id changes nothing more, and answers
  with the operation of the first, for as long as Google remembers it (some minutes at least; not documented).
- **Idempotent by name.** An insert of a name that is there ends in ALREADY_EXISTS and changes nothing: whose it is, its
  description says. A delete of a name that is not there ends in NOT_FOUND.
- **UNKNOWN_OUTCOME** is what a changing call ends in that was lost on its way: it may have had its effect, also later.
  Every other failure means that nothing was changed.
- INVALID and PERMISSION: this request will not be taken as it is, until somebody changes something.
- OPERATION_IN_THE_WAY passes by itself: something else is under way on the resource, or it is still used by another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol, TypeVar

from provisioner.model.capacity import Failure, OperationName
from provisioner.nodegroups.compute.records import (
    Instance,
    ManagedInstance,
    Operation,
    Resource,
    Scope,
)

R = TypeVar("R", bound=Resource)


class ComputeError(Exception):
    """The one exception of Compute Engine's boundary."""

    def __init__(
        self, failure: Failure, subject: str = "", *, retry_after_seconds: float | None = None, code: int = 0
    ) -> None:
        super().__init__(f"{subject}: {failure.message}" if subject else failure.message)
        self.failure = failure
        #: The object and the call, such as "delete of instance group manager 'a'".
        self.subject = subject
        #: Google's own wish, None for none.
        self.retry_after_seconds = retry_after_seconds
        #: The HTTP status of the answer; 0 where there was none.
        self.code = code


class Compute(Protocol):
    """The resources of Compute Engine that a node group consists of. Request ids are UUIDs."""

    def get(self, sort: type[R], scope: Scope, name: str) -> R:
        """Return a resource policy of a region, an instance template as the scope says, or a group of a zone."""
        ...

    def insert(self, scope: Scope, resource: Resource, *, request_id: str) -> Operation:
        """Submit the creation of a resource. A policy may be used once it is READY.

        The operation of a group ends when the group is there; its machines come later, or never: see `Manager.bulk` and
        the failures of its managed instances.
        """
        ...

    def delete(self, sort: type[Resource], scope: Scope, name: str, *, request_id: str) -> Operation:
        """Submit the deletion of a resource, of a group with all its machines.

        OPERATION_IN_THE_WAY of a policy or a template: a group still uses it.
        """
        ...

    def list_managed_instances(self, scope: Scope, name: str) -> tuple[ManagedInstance, ...]:
        """Return all machines of a group by name, placeholders without a machine included. Changes nothing.

        NOT_FOUND: there is no such group now.
        """
        ...

    def list_instances(self, scope: Scope, names: Collection[str]) -> tuple[Instance, ...]:
        """Return the machines of a zone that have these names, with their metadata. Changes nothing.

        A name of which there is no machine, as behind a placeholder, is left out.
        """
        ...

    def set_metadata(
        self, scope: Scope, name: str, items: Mapping[str, str], *, fingerprint: str, request_id: str
    ) -> Operation:
        """Replace all items of a machine's metadata.

        OPERATION_IN_THE_WAY: they are no longer those that the fingerprint stands for; read the machine again.
        """
        ...

    def get_operation(self, scope: Scope, name: OperationName) -> Operation:
        """Return an operation; done with a failure is a failure, not an exception. Changes nothing.

        NOT_FOUND: Google has forgotten it, which says nothing about how it ended; look at the resource.
        """
        ...
