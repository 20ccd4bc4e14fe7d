"""What GKE's texts and codes mean: the one table from them to kinds of failure.

    GkeError
      .failure.kind   one FailureKind, all that the rest of the program branches on
      .failure.message GKE's own words, and what to do where we know it
      .retry_after_seconds  GKE's own wish, None for none

What GKE shares with Google's other APIs, and the two rules that stand over all tables, are in
`provisioner.google.errors`; the first of the rules holds for GKE in so many words: "In the event of an error, the node
pool may be partially created" (API reference of CREATE_NODE_POOL). What users wrote is taken out of a text before it is
read (`echoes`); the message that is kept is whole. What Google's libraries raise becomes a `GkeError` elsewhere
(`exceptions`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from provisioner.google import echoes as google_echoes
from provisioner.google.errors import (
    ACT_AS,
    NO_SUCH_ACCOUNT,
    PASSING,
    TEXTS,
    Answer,
    Call,
    Table,
    text_rule,
)
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


_TABLE = Table(
    # The first match wins. Each rule names where its text was seen.
    texts=(
        # 429, Terraform issues 15205 and 15579.
        text_rule(r"too many operations|concurrent operations quota", FailureKind.TOO_MANY_OPERATIONS),
        # 400 FAILED_PRECONDITION, Terraform issues 758, 930, 3650, 7638, 10366 and the Go provisioner's comments.
        text_rule(
            r"incompatible operation|operation \S+ is currently"
            r"|is currently being (created|deleted|updated|upgraded|repaired)",
            FailureKind.OPERATION_IN_THE_WAY,
        ),
        # The cluster object is full; deleting pools makes room (GKE's autoscaler).
        text_rule(r"cluster byte size limit", FailureKind.QUOTA),
        *TEXTS,
    )
)

#: What to do about refusals of permission that a role on the project does not mend.
_REMEDIES = (
    (
        re.compile(ACT_AS, re.IGNORECASE),
        "Grant the provisioner's identity roles/iam.serviceAccountUser on that service account; the create is retried.",
    ),
    (
        re.compile(NO_SUCH_ACCOUNT, re.IGNORECASE),
        "Create it, or name another in GCP_NODE_SERVICE_ACCOUNT or the pod's annotation; the create is retried.",
    ),
)

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
    kind = _TABLE.kind_of_text(text)
    if kind is None and code == _FAILED_PRECONDITION and PASSING.search(text):
        kind = FailureKind.OPERATION_IN_THE_WAY
    if kind is None:
        kind = _RPC_CODES.get(code or 0, FailureKind.UNAVAILABLE)
    return kind


#: GKE documents INVALID_ARGUMENT for a policy that is not found, and no text; the others are Compute Engine's words.
_MISSING = re.compile(r"not (be )?found|not exist|not ready", re.IGNORECASE)


def blames(failure: Failure, name: str) -> bool:
    """Whether a create was refused in words that name something which it refers to."""
    return failure.kind is FailureKind.INVALID and google_echoes.names(failure.message, name)


def says_missing(failure: Failure, name: str) -> bool:
    """Whether a create was refused because something of this name, which it refers to, is not there (yet)."""
    return blames(failure, name) and _MISSING.search(failure.message) is not None


def remedy_of(text: str, otherwise: str) -> str:
    """Say what to do about a refusal of permission; `otherwise` where a role on the project mends it."""
    return next((remedy for pattern, remedy in _REMEDIES if pattern.search(text)), otherwise)


def kind_of_answer(answer: Answer, call: Call, values: Iterable[str]) -> FailureKind:
    """Return what an error answer means for a call; `values` are what that said in words of users."""
    return _TABLE.kind_of_answer(replace(answer, message=echoes.without(answer.message, values)), call)
