"""What goes wrong: calls to the API server, and what the controller of node groups says of TPUNodeGroups. Pure.

Conditions repeat Google's words, which are read by the one table of all its APIs. Words that say nothing, of a failure
that is about capacity by its reason, do not make a stockout: that would send the same bad request to the next zone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from provisioner import kube
from provisioner.google import echoes
from provisioner.google.errors import TEXTS, Call, Table, text_rule
from provisioner.model.capacity import Failure, FailureKind
from provisioner.nodegroups.api.statuses import Condition, Reason
from provisioner.nodegroups.api.types import TpuNodeGroup
from provisioner.slices.supplier import SupplierError

_TABLE = Table(
    texts=(
        # 403 of Compute Engine, whose code conditions do not have.
        text_rule(r"Required '[a-z.]+' permission", FailureKind.PERMISSION),
        *TEXTS,
    )
)
#: What a reason means whose words say nothing. What is not here is no failure.
_REASONS: Mapping[str, FailureKind] = {
    Reason.REQUEST_REJECTED: FailureKind.INVALID,
    Reason.INVALID_SPEC: FailureKind.INVALID,
    Reason.INVALID_TEMPLATE: FailureKind.INVALID,
    Reason.NOT_ALLOWED: FailureKind.PERMISSION,
    Reason.OPERATION_FAILED: FailureKind.UNAVAILABLE,
    Reason.RECONCILE_ERROR: FailureKind.UNAVAILABLE,
    Reason.INSTANCES_CREATION_FAILED: FailureKind.UNAVAILABLE,
}
#: What these mean is ours to say, whatever words they come with.
_OURS = frozenset({Reason.INVALID_SPEC, Reason.NOT_ALLOWED})

_CONTROLLER = "the controller of node groups (`tpu-provisioner nodegroups`)"
NOT_TAKEN = Failure(
    kind=FailureKind.UNAVAILABLE,
    message=f"No controller has taken the TPUNodeGroup: make sure that {_CONTROLLER} runs and serves its namespace.",
)
_GRANT_HELP = (
    "Grant the provisioner get, list, create and delete of tpunodegroups in the namespace of NODE_GROUP_NAMESPACE "
    "(deploy/components/provider-gce)."
)
_NOT_INSTALLED = (
    f"Install the CustomResourceDefinitions of {_CONTROLLER}, and create the namespace of NODE_GROUP_NAMESPACE."
)


def failure_of(group: TpuNodeGroup, condition: Condition) -> Failure | None:
    """Return the failure that a condition of a group which is not true tells of; None for none.

    Words of users decide nothing.
    """
    kind = _REASONS.get(condition.reason)
    if kind is None:
        return None
    if condition.reason not in _OURS:
        kind = _TABLE.kind_of_text(_without_echoes(group, condition.message)) or kind
    return Failure(kind=kind, message=words(condition))


def words(condition: Condition) -> str:
    """Return what a condition says."""
    return condition.message or condition.reason


def _without_echoes(group: TpuNodeGroup, text: str) -> str:
    """Return a text without what is a user's: names of the group, its children and machines, and parts of its spec."""
    text = re.sub(rf"(?<![\w-]){re.escape(group.meta.name)}[-a-z0-9]*", echoes.GAP, text)
    config = group.spec.instance_config
    if config is None:
        return text
    accounts = (account.email for account in config.service_accounts)
    places = (config.reservation, config.image, config.subnetwork, config.disk_type)
    return echoes.without(text, (group.meta.namespace, *places, *accounts, *config.network_tags))


def supplier_error(error: kube.ClusterError, subject: str, call: Call) -> SupplierError:
    """Return what the failure of a call to the API server means."""
    kind, help_ = _kind_of(error, call)
    message = f"{str(error).rstrip('.')}. {help_}" if help_ else str(error)
    wait = error.retry_after_seconds if isinstance(error, kube.TooManyRequests) else None
    return SupplierError(Failure(kind=kind, message=message), subject, retry_after_seconds=wait)


def _kind_of(error: kube.ClusterError, call: Call) -> tuple[FailureKind, str]:
    """Return the kind of a failure, and what to do about it."""
    changes = call is not Call.READ
    match error:
        case kube.NotFound():
            if error.reason and call is not Call.CREATE:
                return FailureKind.NOT_FOUND, ""
            # Without a reason it is the whole kind that is not there.
            return FailureKind.INVALID if changes else FailureKind.UNAVAILABLE, _NOT_INSTALLED
        case kube.Conflict():
            if call is Call.CREATE and "being deleted" not in error.message:
                return FailureKind.ALREADY_EXISTS, ""
            return FailureKind.OPERATION_IN_THE_WAY, ""
        case kube.Forbidden() if "exceeded quota" in error.message:
            # A ResourceQuota of the namespace.
            return FailureKind.QUOTA, ""
        case kube.Forbidden():
            return FailureKind.PERMISSION, _GRANT_HELP
        case kube.Unauthorized():
            return FailureKind.PERMISSION, ""
        case kube.Invalid():
            return FailureKind.INVALID, ""
        case kube.TooManyRequests() | kube.Gone():
            return FailureKind.UNAVAILABLE, ""
    # The call may have had its effect, or have it still.
    return FailureKind.UNKNOWN_OUTCOME if changes else FailureKind.UNAVAILABLE, ""
