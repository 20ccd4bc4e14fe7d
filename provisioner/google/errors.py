"""What the texts and codes of Google's answers mean, as far as it is the same for all its APIs. Pure.

Two rules stand over the tables. A call that changes something and was lost on its way, or was answered with a 5xx, has
an unknown outcome: no API promises that such an answer precedes any effect. And a failure that we do not recognise
never counts as a stockout: that would send the same bad request to the next zone.

The texts come from reports and recorded answers, and Google may change them; an unknown text falls back to its code.
What only one API says is in a table beside its client.

Google repeats names in its errors: a JobSet called `quota-exceeded` would otherwise decide what the error means. So
`without_echoes` takes out what users wrote before a text is read; people see the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from typing import NamedTuple

from provisioner.model.capacity import FailureKind


class Call(Enum):
    """What a call does, as far as it changes the meaning of its failure."""

    READ = "read"
    CREATE = "create"
    #: Of what is there already.
    UPDATE = "update"
    DELETE = "delete"


#: A pattern, and what a text means that it matches.
TextRule = tuple[re.Pattern[str], FailureKind]


def text_rule(pattern: str, kind: FailureKind) -> TextRule:
    """Return the rule of a pattern in which case does not count."""
    return re.compile(pattern, re.IGNORECASE | re.DOTALL), kind


#: A service account that may not be used, and one that is not there.
_ACT_AS = r"not have access to service account|iam\.serviceAccountUser|serviceAccounts\.actAs"
_NO_SUCH_ACCOUNT = r"service account \S+ (does not exist|was not found|not found)"

#: The first match wins. Each rule names where its text was seen.
TEXTS: Sequence[TextRule] = (
    # Requests per time, which passes by itself; not a quota of resources.
    text_rule(r"quota metric .*requests|rate.?limit.?exceeded|api requests", FailureKind.UNAVAILABLE),
    # Addresses run out as a quota does: later, or elsewhere, they may be there (GKE's autoscaler).
    text_rule(
        r"IP_SPACE_EXHAUSTED|does not have available private IP space|Cannot find pod range with enough available IPs",
        FailureKind.QUOTA,
    ),
    # GKE's autoscaler takes any code that contains QUOTA; the words are those of Compute Engine.
    text_rule(
        r"[A-Z]_QUOTA|QUOTA_[A-Z]|\bquota\b.*\bexceeded|(exceeded?|insufficient)\b.*\bquota\b",
        FailureKind.QUOTA,
    ),
    # Codes that say stockout whatever the sentence around them says.
    text_rule(
        r"GCE_STOCKOUT|RESOURCE_POOL_EXHAUSTED|INSUFFICIENT_CAPACITY|RESERVATION_CAPACITY_EXCEEDED",
        FailureKind.STOCKOUT,
    ),
    # A reservation that is used up, or not ready yet: what others have of it now may be free later, as with any stock.
    # The words are those that GKE's autoscaler knows, and gsutil issue 1000.
    text_rule(
        r"\breservation\b[^.]*\b(insufficient|sufficient capacity|exhausted|enough|not have available resources)"
        r"|no available\b[^.]*\breservations?\b|requires reservation to be in READY state"
        r"|not currently have sufficient capacity",
        FailureKind.STOCKOUT,
    ),
    # A reservation that cannot serve: somebody has to change something.
    text_rule(
        r"\breservation\b[^.]*\b(not found|not exist|incompatible|not compatible|not have|expired)"
        r"|(could not find|incompatible|must use)\b[^.]*\breservation\b",
        FailureKind.INVALID,
    ),
    # Words for a stockout: akka issue 32992, kubeflow issue 673, xpk; the code without a reservation, GKE's autoscaler.
    text_rule(
        r"not have enough resources available|is currently unavailable in the|lack of capacity"
        r"|requested resource is exhausted|INVALID_RESERVATION",
        FailureKind.STOCKOUT,
    ),
    # The organisation's rules forbid the request as it is: 400, 403, or 412, which else is about etags.
    text_rule(
        r"\bconstraints?/[a-z]|constraint\b.*\bviolated|violates constraint|\borg(anization)? policy\b",
        FailureKind.INVALID,
    ),
    # HTTP 400, terraform-google-kubernetes-engine issue 142: the node service account may not be used, or is not there.
    text_rule(f"{_ACT_AS}|{_NO_SUCH_ACCOUNT}", FailureKind.PERMISSION),
    text_rule(
        r"NODE_SERVICE_ACCOUNT_MISSING_PERMISSIONS|GKE_SERVICE_ACCOUNT_DELETED|CLOUD_KMS_KEY_(ERROR|DESTROYED)"
        r"|PERMISSION_DENIED|permission denied|not have permission|required \"\S+\" permission",
        FailureKind.PERMISSION,
    ),
    # Pools in ERROR carry a text and often no code.
    text_rule(
        r"invalid value for field|requested invalid target size|can't be specified with|is not supported"
        r"|is incorrect for the requested resources|invalid TPU topology|is not a valid size|not specified"
        r"|must be a match of regex|INVALID_ARGUMENT",
        FailureKind.INVALID,
    ),
    # Fewer machines could be had than all: a summary, beside which Google often says why (SkyPilot).
    text_rule("VM_MIN_COUNT_NOT_REACHED", FailureKind.STOCKOUT),
)


def remedy_of(text: str, *, accounts: str, again: str, otherwise: str) -> str:
    """Say what to do about a refusal of permission; `accounts` tells where a service account is named."""
    if re.search(_ACT_AS, text, re.IGNORECASE):
        return f"Grant the provisioner's identity roles/iam.serviceAccountUser on that service account; the {again}."
    if re.search(_NO_SUCH_ACCOUNT, text, re.IGNORECASE):
        return f"Create it, or name another in {accounts}; the {again}."
    return otherwise


#: Preconditions that pass by themselves, in words not seen before.
PASSING = re.compile(r"is currently|please wait|try again|in progress", re.IGNORECASE)

_STATUSES = frozenset(map(int, HTTPStatus))
#: HTTP codes whose text decides first. 401 and 404 mean one thing only; what a 5xx says does not bind it.
_TEXT_DECIDES = frozenset({400, 403, 409, 412, 429})
#: 403 that is not about permission (Google's older form of 429).
_RATE_REASONS = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED"})
#: A 429 for too many operations, or for a full reservation, may carry the reason of a rate limit; so may the words for
#: a quota, but there the reason tells the quota of requests from that of resources.
SURER_THAN_REASONS = frozenset(
    {FailureKind.TOO_MANY_OPERATIONS, FailureKind.OPERATION_IN_THE_WAY, FailureKind.STOCKOUT}
)
_QUOTA_REASONS = frozenset({"quotaExceeded", "QUOTA_EXCEEDED"})


class CodeRow(NamedTuple):
    """What a code means for each sort of call; `change`: an update or a delete."""

    read: FailureKind
    create: FailureKind
    change: FailureKind

    def of(self, call: Call) -> FailureKind:
        """Return what it means for a call."""
        return self.read if call is Call.READ else self.create if call is Call.CREATE else self.change


def same(kind: FailureKind) -> CodeRow:
    """Return the row of a code that means the same for every call."""
    return CodeRow(read=kind, create=kind, change=kind)


#: The call may not have arrived, or its answer was lost.
LOST = CodeRow(read=FailureKind.UNAVAILABLE, create=FailureKind.UNKNOWN_OUTCOME, change=FailureKind.UNKNOWN_OUTCOME)
CODES: Mapping[int, CodeRow] = {
    400: same(FailureKind.INVALID),
    401: same(FailureKind.PERMISSION),
    403: same(FailureKind.PERMISSION),
    # A create names nothing that could be missing but what it is made in and what the request refers to.
    404: CodeRow(read=FailureKind.NOT_FOUND, create=FailureKind.INVALID, change=FailureKind.NOT_FOUND),
    408: LOST,
    # GKE's autoscaler reads it as "node group exists"; nothing can exist already for a delete or an update.
    409: CodeRow(FailureKind.UNAVAILABLE, FailureKind.ALREADY_EXISTS, FailureKind.OPERATION_IN_THE_WAY),
    # Etags and fingerprints: the resource changed under the call. The other use, a policy, is known by its text.
    412: same(FailureKind.OPERATION_IN_THE_WAY),
    429: same(FailureKind.UNAVAILABLE),
    # Cancelled on the way by client or proxy.
    499: LOST,
    # The method does not exist there: nothing was done, and nothing will be.
    501: same(FailureKind.INVALID),
}


def row_of(code: int) -> CodeRow:
    """Return what an HTTP code means whose words say nothing."""
    # A 3xx comes from an address that redirects instead of serving.
    known = same(FailureKind.INVALID if code >= 400 else FailureKind.UNAVAILABLE)
    return CODES.get(code, known if 300 <= code < 500 else LOST)


def status_label(code: int) -> str:
    """Return an HTTP status as a label of metrics, 0 for no answer: whatever answers, the labels are bounded."""
    return "none" if not code else str(code) if code in _STATUSES else "other"


@dataclass(frozen=True, slots=True)
class Answer:
    """An error answer, as far as it could be read."""

    code: int
    message: str
    status: str
    reasons: frozenset[str]
    retry_after_seconds: float | None
    from_google: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What the answers of one API mean."""

    texts: Sequence[TextRule] = TEXTS
    #: Reasons that say what it is whatever text and code say.
    reasons: Mapping[str, FailureKind] = field(default_factory=dict)

    def kind_of_text(self, text: str) -> FailureKind | None:
        """Return what a text means; None for an unknown one."""
        return next((kind for pattern, kind in self.texts if pattern.search(text)), None)

    def kind_of_answer(self, answer: Answer, call: Call) -> FailureKind:
        """Return what an error answer means for a call; words of users are taken out of its message already."""
        if not answer.from_google and answer.code < 500:
            # A proxy or a wrong address spoke; above all, its 404 says nothing about what was asked for.
            return FailureKind.PERMISSION if answer.code in (401, 403, 407) else FailureKind.UNAVAILABLE
        # What a 5xx says does not bind it, its reasons neither.
        reasons = answer.reasons if answer.code < 500 else frozenset()
        known = next((self.reasons[reason] for reason in sorted(reasons) if reason in self.reasons), None)
        if known is not None:
            return known
        kind = self.kind_of_text(answer.message) if answer.code in _TEXT_DECIDES else None
        if kind in SURER_THAN_REASONS:
            return kind
        if reasons & _RATE_REASONS:
            return FailureKind.UNAVAILABLE
        if reasons & _QUOTA_REASONS:
            return FailureKind.QUOTA
        if kind is not None:
            return kind
        if answer.code == 409 and answer.status == "ABORTED":
            return FailureKind.OPERATION_IN_THE_WAY
        precondition = answer.status == "FAILED_PRECONDITION" or "failedPrecondition" in answer.reasons
        if precondition and answer.code in _TEXT_DECIDES and PASSING.search(answer.message):
            return FailureKind.OPERATION_IN_THE_WAY
        return row_of(answer.code).of(call)


#: Stands where something was taken out, so that the words around it stay apart.
GAP = "…"
#: Nothing that Google's words are known by is shorter.
_SHORTEST_VALUE = 4
#: Longer texts are read so far.
_LONGEST_TEXT = 10_000
#: Parts of a resource's path that are Google's own words.
_COLLECTIONS = frozenset(
    {
        "projects", "global", "regions", "zones", "locations", "networks", "subnetworks", "reservations",
        "reservationBlocks", "reservationSubBlocks", "keyRings", "cryptoKeys", "images", "disks", "resourcePolicies",
        "instanceTemplates", "instanceGroupManagers", "instances",
    }
)  # fmt: skip


def without_echoes(text: str, values: Iterable[str]) -> str:
    """Return a text without the values, wherever they stand as a name of their own.

    A plain word goes only where it is quoted or part of a path: it could be Google's own as well.
    """
    text = text[:_LONGEST_TEXT]
    words: set[str] = set()
    others: set[str] = set()
    for value in values:
        for part in _parts(value):
            if len(part) >= _SHORTEST_VALUE:
                (words if part.isalpha() else others).add(part)
    if others:
        text = re.sub(rf"(?<![\w-])(?:{_alternatives(others)})(?![\w-])", GAP, text)
    if words:
        text = re.sub(rf"(?<=['\"`/=:])(?:{_alternatives(words)})(?![\w-])", GAP, text)
    return text


def mentions(text: str, name: str) -> bool:
    """Whether a text has a name as a name of its own, not as a part of another word."""
    return bool(name) and re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) is not None


def _parts(value: str) -> Iterator[str]:
    yield value
    # Google repeats paths in other forms than they were given in.
    if "/" in value:
        yield from (part for part in value.split("/") if part not in _COLLECTIONS)
    if "@" in value:
        yield from value.split("@")


def _alternatives(texts: set[str]) -> str:
    # The longest first, so that no part of it is taken for the whole.
    return "|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True))
