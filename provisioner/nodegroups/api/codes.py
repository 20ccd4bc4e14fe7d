"""Error codes of Compute Engine, which the messages of conditions may contain as `CODE: text`. Pure."""

from collections.abc import Mapping

from provisioner.google.errors import CodeRow, same
from provisioner.model.capacity import FailureKind

#: Error codes of operations and machines that have the same meaning in all calls.
_WORK_KINDS: Mapping[FailureKind, tuple[str, ...]] = {
    FailureKind.STOCKOUT: (
        "ZONE_RESOURCE_POOL_EXHAUSTED",
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        "REGION_RESOURCE_POOL_EXHAUSTED",
        "REGION_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        "RESOURCE_POOL_EXHAUSTED",
        "GCE_STOCKOUT",
        "STOCKOUT",
        "INSUFFICIENT_CAPACITY",
        "RESERVATION_CAPACITY_EXCEEDED",
        "RESERVATION_NOT_READY",
    ),
    FailureKind.QUOTA: ("QUOTA_EXCEEDED", "LIMIT_EXCEEDED", "IP_SPACE_EXHAUSTED", "IP_SPACE_EXHAUSTED_WITH_DETAILS"),
    FailureKind.OPERATION_IN_THE_WAY: (
        "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE",
        "RESOURCE_NOT_READY",
        "OPERATION_IN_PROGRESS",
    ),
    FailureKind.UNAVAILABLE: (
        "RESOURCE_OPERATION_RATE_EXCEEDED",
        "RATE_LIMIT_EXCEEDED",
        "INTERNAL_ERROR",
        "BACKEND_ERROR",
        "SERVICE_UNAVAILABLE",
        "TIMEOUT",
        "OPERATION_CANCELED_BY_USER",
    ),
    FailureKind.PERMISSION: ("PERMISSIONS_ERROR", "PERMISSION_DENIED", "FORBIDDEN", "SERVICE_ACCOUNT_ACCESS_DENIED"),
    FailureKind.INVALID: (
        "INVALID_FIELD_VALUE",
        "INVALID_USAGE",
        "UNSUPPORTED_OPERATION",
        "UNSUPPORTED_TPU_CONFIGURATION",
        "RESERVATION_NOT_FOUND",
        "RESERVATION_INCOMPATIBLE",
        "EXTERNAL_RESOURCE_NOT_FOUND",
    ),
}
WORK_CODES: Mapping[str, CodeRow] = {
    **{code: same(kind) for kind, codes in _WORK_KINDS.items() for code in codes},
    # In a create, a resource that the request refers to is missing; in other calls, the resource itself is missing.
    "RESOURCE_NOT_FOUND": CodeRow(read=FailureKind.NOT_FOUND, create=FailureKind.INVALID, change=FailureKind.NOT_FOUND),
    "RESOURCE_ALREADY_EXISTS": CodeRow(
        read=FailureKind.UNAVAILABLE, create=FailureKind.ALREADY_EXISTS, change=FailureKind.OPERATION_IN_THE_WAY
    ),
    # In a create, an organisation policy forbids the resource; in a change, the resource has changed since it was read.
    "CONDITION_NOT_MET": CodeRow(
        read=FailureKind.INVALID, create=FailureKind.INVALID, change=FailureKind.OPERATION_IN_THE_WAY
    ),
}
