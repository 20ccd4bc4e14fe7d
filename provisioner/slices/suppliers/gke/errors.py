"""What GKE's texts and codes mean: the one table from them to kinds of failure.

    GkeError
      .failure.kind   one FailureKind, all that the rest of the program branches on
      .failure.message GKE's own words, and what to do where we know it
      .retry_after_seconds  GKE's own wish, None for none

Two rules stand over the tables. A call that changes something and was lost on its way, or was answered with a 5xx, has
an unknown outcome: GKE's API makes no promise that such an answer precedes any effect ("In the event of an error, the
node pool may be partially created", API reference of CREATE_NODE_POOL). And a failure that we do not recognise never
counts as a stockout: that would send the same bad request to the next zone.

The texts come from reports and recorded answers, and Google may change them; an unknown text falls back to its code.
What users wrote is taken out of them first (`echoes`); the message that is kept is whole. What Google's libraries raise
is read into an `Answer` elsewhere (`exceptions`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from provisioner.model.capacity import Failure, FailureKind
from provisioner.slices.supplier import SupplierError
from provisioner.slices.suppliers.gke import echoes


class GkeError(SupplierError):
    """The one exception of the cloud boundary."""

    def __init__(
        self, failure: Failure, subject: str = "", *, retry_after_seconds: float | None = None, code: int = 0
    ) -> None:
        super().__init__(failure, subject, retry_after_seconds=retry_after_seconds)
        #: The HTTP status of the answer; 0 where there was none.
        self.code = code


class Call(Enum):
    """What a call does, as far as it changes the meaning of its failure."""

    READ = "read"
    CREATE = "create"
    DELETE = "delete"


# --- Texts --------------------------------------------------------------------------------------------------


class _TextRule(NamedTuple):
    pattern: re.Pattern[str]
    kind: FailureKind


def _text(pattern: str, kind: FailureKind) -> _TextRule:
    return _TextRule(re.compile(pattern, re.IGNORECASE | re.DOTALL), kind)


_ACT_AS = r"not have access to service account|iam\.serviceAccountUser|serviceAccounts\.actAs"
_NO_SUCH_ACCOUNT = r"service account \S+ (does not exist|was not found|not found)"

#: The first match wins. Each rule names where its text was seen.
_TEXTS = (
    # 429, Terraform issues 15205 and 15579.
    _text(r"too many operations|concurrent operations quota", FailureKind.TOO_MANY_OPERATIONS),
    # 400 FAILED_PRECONDITION, Terraform issues 758, 930, 3650, 7638, 10366 and the Go provisioner's comments.
    _text(
        r"incompatible operation|operation \S+ is currently"
        r"|is currently being (created|deleted|updated|upgraded|repaired)",
        FailureKind.OPERATION_IN_THE_WAY,
    ),
    # Requests per time, which passes by itself; not a quota of resources.
    _text(r"quota metric .*requests|rate.?limit.?exceeded|api requests", FailureKind.UNAVAILABLE),
    # Addresses run out as a quota does: later, or elsewhere, they may be there (GKE's autoscaler).
    _text(
        r"IP_SPACE_EXHAUSTED|does not have available private IP space|Cannot find pod range with enough available IPs",
        FailureKind.QUOTA,
    ),
    # The cluster object is full; deleting pools makes room (GKE's autoscaler).
    _text(r"cluster byte size limit", FailureKind.QUOTA),
    # GKE's autoscaler takes any code that contains QUOTA; the words are those of Compute Engine.
    _text(
        r"[A-Z]_QUOTA|QUOTA_[A-Z]|\bquota\b.*\bexceeded|(exceeded?|insufficient)\b.*\bquota\b",
        FailureKind.QUOTA,
    ),
    # Codes that say stockout whatever the sentence around them says.
    _text(
        r"GCE_STOCKOUT|RESOURCE_POOL_EXHAUSTED|INSUFFICIENT_CAPACITY|RESERVATION_CAPACITY_EXCEEDED",
        FailureKind.STOCKOUT,
    ),
    # A reservation that is used up, or not ready yet: what others have of it now may be free later, as with any stock.
    # The words are those that GKE's autoscaler knows, and gsutil issue 1000.
    _text(
        r"\breservation\b[^.]*\b(insufficient|sufficient capacity|exhausted|enough|not have available resources)"
        r"|no available\b[^.]*\breservations?\b|requires reservation to be in READY state"
        r"|not currently have sufficient capacity",
        FailureKind.STOCKOUT,
    ),
    # A reservation that cannot serve: somebody has to change something.
    _text(
        r"\breservation\b[^.]*\b(not found|not exist|incompatible|not compatible|not have|expired)"
        r"|(could not find|incompatible|must use)\b[^.]*\breservation\b",
        FailureKind.INVALID,
    ),
    # Words for a stockout: akka issue 32992, kubeflow issue 673, xpk; the code without a reservation, GKE's autoscaler.
    _text(
        r"not have enough resources available|is currently unavailable in the|lack of capacity"
        r"|requested resource is exhausted|INVALID_RESERVATION",
        FailureKind.STOCKOUT,
    ),
    # The organisation's rules forbid the request as it is: 400, 403, or 412, which else is about etags.
    _text(
        r"\bconstraints?/[a-z]|constraint\b.*\bviolated|violates constraint|\borg(anization)? policy\b",
        FailureKind.INVALID,
    ),
    # HTTP 400, terraform-google-kubernetes-engine issue 142: the node service account may not be used, or is not there.
    _text(f"{_ACT_AS}|{_NO_SUCH_ACCOUNT}", FailureKind.PERMISSION),
    _text(
        r"NODE_SERVICE_ACCOUNT_MISSING_PERMISSIONS|GKE_SERVICE_ACCOUNT_DELETED|CLOUD_KMS_KEY_(ERROR|DESTROYED)"
        r"|PERMISSION_DENIED|permission denied|not have permission|required \"\S+\" permission",
        FailureKind.PERMISSION,
    ),
    # Pools in ERROR carry a text and often no code.
    _text(
        r"invalid value for field|requested invalid target size|can't be specified with|is not supported"
        r"|is incorrect for the requested resources|invalid TPU topology|is not a valid size|not specified"
        r"|must be a match of regex|INVALID_ARGUMENT",
        FailureKind.INVALID,
    ),
)

#: What to do about refusals of permission that a role on the project does not mend.
_REMEDIES = (
    (
        re.compile(_ACT_AS, re.IGNORECASE),
        "Grant the provisioner's identity roles/iam.serviceAccountUser on that service account; the create is retried.",
    ),
    (
        re.compile(_NO_SUCH_ACCOUNT, re.IGNORECASE),
        "Create it, or name another in GCP_NODE_SERVICE_ACCOUNT or the pod's annotation; the create is retried.",
    ),
)

#: Preconditions that pass by themselves, in words not seen before.
_PASSING = re.compile(r"is currently|please wait|try again|in progress", re.IGNORECASE)

#: google.rpc.Code of an operation's error, for texts that say nothing.
_RPC_CODES: Mapping[int, FailureKind] = {
    1: FailureKind.UNAVAILABLE,  # CANCELLED: by someone else; the next round asks again
    2: FailureKind.UNAVAILABLE,  # UNKNOWN
    3: FailureKind.INVALID,  # INVALID_ARGUMENT
    4: FailureKind.UNAVAILABLE,  # DEADLINE_EXCEEDED
    5: FailureKind.INVALID,  # NOT_FOUND: something that the request names (network, policy, reservation)
    6: FailureKind.ALREADY_EXISTS,
    7: FailureKind.PERMISSION,  # PERMISSION_DENIED, persistent for GKE's autoscaler
    8: FailureKind.QUOTA,  # RESOURCE_EXHAUSTED, persistent for GKE's autoscaler
    9: FailureKind.INVALID,  # FAILED_PRECONDITION that does not pass by itself
    10: FailureKind.UNAVAILABLE,  # ABORTED
    11: FailureKind.INVALID,  # OUT_OF_RANGE
    12: FailureKind.INVALID,  # UNIMPLEMENTED
    13: FailureKind.UNAVAILABLE,  # INTERNAL
    14: FailureKind.UNAVAILABLE,
    15: FailureKind.UNAVAILABLE,  # DATA_LOSS
    16: FailureKind.PERMISSION,  # UNAUTHENTICATED, persistent for GKE's autoscaler
}
_FAILED_PRECONDITION = 9


def classify_message(code: int | None, text: str, values: Iterable[str] = ()) -> FailureKind:
    """Return the kind of a failed operation or node pool; `code` is a google.rpc.Code where there is one.

    `values` are what the request or the pool says of itself: words of users, which decide nothing.
    """
    text = echoes.without(text, values)
    kind = _kind_of_text(text)
    if kind is None and code == _FAILED_PRECONDITION and _PASSING.search(text):
        kind = FailureKind.OPERATION_IN_THE_WAY
    if kind is None:
        kind = _RPC_CODES.get(code or 0, FailureKind.UNAVAILABLE)
    return kind


#: GKE documents INVALID_ARGUMENT for a policy that is not found, and no text; the others are Compute Engine's words.
_MISSING = re.compile(r"not (be )?found|not exist|not ready", re.IGNORECASE)


def blames(failure: Failure, name: str) -> bool:
    """Whether a create was refused in words that name something which it refers to."""
    return failure.kind is FailureKind.INVALID and echoes.names(failure.message, name)


def says_missing(failure: Failure, name: str) -> bool:
    """Whether a create was refused because something of this name, which it refers to, is not there (yet)."""
    return blames(failure, name) and _MISSING.search(failure.message) is not None


def remedy_of(text: str, otherwise: str) -> str:
    """Say what to do about a refusal of permission; `otherwise` where a role on the project mends it."""
    return next((remedy for pattern, remedy in _REMEDIES if pattern.search(text)), otherwise)


def _kind_of_text(text: str) -> FailureKind | None:
    return next((rule.kind for rule in _TEXTS if rule.pattern.search(text)), None)


# --- Answers ------------------------------------------------------------------------------------------------

#: HTTP codes whose text decides first. 401 and 404 mean one thing only; what a 5xx says does not bind it.
_TEXT_DECIDES = frozenset({400, 403, 409, 412, 429})
#: 403 that is not about permission (Google's older form of 429).
_RATE_REASONS = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED"})
#: GKE's 429 for too many operations, or for a full reservation, may carry the reason of a rate limit; so may the words
#: for a quota, but there the reason tells the quota of requests from that of resources.
_SURER_THAN_REASONS = frozenset(
    {FailureKind.TOO_MANY_OPERATIONS, FailureKind.OPERATION_IN_THE_WAY, FailureKind.STOCKOUT}
)
_QUOTA_REASONS = frozenset({"quotaExceeded", "QUOTA_EXCEEDED"})


class _CodeRow(NamedTuple):
    read: FailureKind
    create: FailureKind
    delete: FailureKind


def _same(kind: FailureKind) -> _CodeRow:
    return _CodeRow(read=kind, create=kind, delete=kind)


LOST = _CodeRow(
    read=FailureKind.UNAVAILABLE,
    create=FailureKind.UNKNOWN_OUTCOME,
    delete=FailureKind.UNKNOWN_OUTCOME,
)
_CODES: Mapping[int, _CodeRow] = {
    400: _same(FailureKind.INVALID),
    401: _same(FailureKind.PERMISSION),
    403: _same(FailureKind.PERMISSION),
    # A create names nothing that could be missing but the cluster and what the request refers to.
    404: _CodeRow(read=FailureKind.NOT_FOUND, create=FailureKind.INVALID, delete=FailureKind.NOT_FOUND),
    408: LOST,
    # GKE's autoscaler reads it as "node group exists"; nothing can exist already for a delete.
    409: _CodeRow(
        read=FailureKind.UNAVAILABLE,
        create=FailureKind.ALREADY_EXISTS,
        delete=FailureKind.OPERATION_IN_THE_WAY,
    ),
    # Etags, and we send none: the cluster changed under the call. The other use, a policy, is known by its text.
    412: _same(FailureKind.OPERATION_IN_THE_WAY),
    429: _same(FailureKind.UNAVAILABLE),
    # Cancelled on the way by client or proxy.
    499: LOST,
    # The method does not exist there: nothing was done, and nothing will be.
    501: _same(FailureKind.INVALID),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """An error answer, as far as it could be read."""

    code: int
    message: str
    status: str
    reasons: frozenset[str]
    retry_after_seconds: float | None
    from_google: bool


def kind_of_answer(answer: Answer, call: Call, values: Iterable[str]) -> FailureKind:
    """Return what an error answer means for a call; `values` are what that said in words of users."""
    answer = replace(answer, message=echoes.without(answer.message, values))
    if not answer.from_google and answer.code < 500:
        # A proxy or a wrong address spoke; above all, its 404 says nothing about a node pool.
        return FailureKind.PERMISSION if answer.code in (401, 403, 407) else FailureKind.UNAVAILABLE
    kind = _kind_of_text(answer.message) if answer.code in _TEXT_DECIDES else None
    if kind in _SURER_THAN_REASONS:
        return kind
    if answer.reasons & _RATE_REASONS:
        return FailureKind.UNAVAILABLE
    if answer.reasons & _QUOTA_REASONS:
        return FailureKind.QUOTA
    if kind is not None:
        return kind
    if answer.code == 409 and answer.status == "ABORTED":
        return FailureKind.OPERATION_IN_THE_WAY
    precondition = answer.status == "FAILED_PRECONDITION" or "failedPrecondition" in answer.reasons
    if precondition and answer.code in _TEXT_DECIDES and _PASSING.search(answer.message):
        return FailureKind.OPERATION_IN_THE_WAY
    row = _CODES.get(answer.code)
    if row is None and 400 <= answer.code < 500:
        row = _same(FailureKind.INVALID)
    if row is None and 300 <= answer.code < 400:
        # The address redirects instead of serving.
        row = _same(FailureKind.UNAVAILABLE)
    row = row or LOST
    return {Call.READ: row.read, Call.CREATE: row.create, Call.DELETE: row.delete}[call]
