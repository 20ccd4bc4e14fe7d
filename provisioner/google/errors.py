"""Classifies the texts and codes of Google's error responses, by rules that Google's APIs share. Pure.

If the response to a change is lost, or is a 5xx except 501, the change may take effect: its outcome is unknown. A
failure that matches no rule never counts as a stockout; otherwise a bad request would be sent again to the next zone.
The texts are from reports and recorded responses. If Google changes a text, the reason or the code decides. Rules for
a single API are next to the client of the API. Google repeats names in its errors, so a JobSet with the name
`quota-exceeded` could match a rule. `without_echoes` removes users' values before a text is classified.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import NamedTuple

from provisioner.model.capacity import FailureKind


class Call(Enum):
    """Kind of an API call. The meaning of an HTTP status depends on it."""

    READ = "read"
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


TextRule = tuple[re.Pattern[str], FailureKind]


def text_rule(pattern: str, kind: FailureKind) -> TextRule:
    """Return a rule whose pattern ignores case, and whose dots also match line ends."""
    return re.compile(pattern, re.IGNORECASE | re.DOTALL), kind


_ACT_AS = r"not have access to service account|iam\.serviceAccountUser|serviceAccounts\.actAs"
NO_SUCH_ACCOUNT = r"service account \S+ (does not exist|was not found|not found)"

#: Rules for texts; the first match wins.
TEXTS: Sequence[TextRule] = (
    # Limits of requests per time are no QUOTA failures, because the same request succeeds later.
    text_rule(r"quota metric .*requests|rate.?limit.?exceeded|api requests", FailureKind.UNAVAILABLE),
    # Exhausted IP addresses are like a quota: some may be free later or elsewhere (source: GKE's autoscaler).
    text_rule(
        r"IP_SPACE_EXHAUSTED|does not have available private IP space|Cannot find pod range with enough available IPs",
        FailureKind.QUOTA,
    ),
    # Codes (as in GKE's autoscaler, which matches any code that contains QUOTA), then texts of Compute Engine.
    text_rule(
        r"[A-Z]_QUOTA|QUOTA_[A-Z]|\bquota\b.*\bexceeded|(exceeded?|insufficient)\b.*\bquota\b",
        FailureKind.QUOTA,
    ),
    text_rule(
        r"GCE_STOCKOUT|RESOURCE_POOL_EXHAUSTED|INSUFFICIENT_CAPACITY|RESERVATION_CAPACITY_EXCEEDED",
        FailureKind.STOCKOUT,
    ),
    # A used-up or unready reservation may have capacity later (texts: GKE's autoscaler, gsutil issue 1000).
    text_rule(
        r"\breservation\b[^.]*\b(insufficient|sufficient capacity|exhausted|enough|not have available resources)"
        r"|no available\b[^.]*\breservations?\b|requires reservation to be in READY state"
        r"|not currently have sufficient capacity",
        FailureKind.STOCKOUT,
    ),
    # The reservation cannot be used until a user changes the request or the reservation.
    text_rule(
        r"\breservation\b[^.]*\b(not found|not exist|incompatible|not compatible|not have|expired)"
        r"|(could not find|incompatible|must use)\b[^.]*\breservation\b",
        FailureKind.INVALID,
    ),
    # Further texts of stockouts (akka issue 32992, kubeflow issue 673, xpk), and a code from GKE's autoscaler.
    text_rule(
        r"not have enough resources available|is currently unavailable in the|lack of capacity"
        r"|requested resource is exhausted|INVALID_RESERVATION",
        FailureKind.STOCKOUT,
    ),
    # A policy of the organization forbids the request (HTTP 400, 403 or 412).
    text_rule(
        r"\bconstraints?/[a-z]|constraint\b.*\bviolated|violates constraint|\borg(anization)? policy\b",
        FailureKind.INVALID,
    ),
    # The service account is missing, or may not be used (HTTP 400, terraform-google-kubernetes-engine issue 142).
    text_rule(f"{_ACT_AS}|{NO_SUCH_ACCOUNT}", FailureKind.PERMISSION),
    text_rule(
        r"NODE_SERVICE_ACCOUNT_MISSING_PERMISSIONS|GKE_SERVICE_ACCOUNT_DELETED|CLOUD_KMS_KEY_(ERROR|DESTROYED)"
        r"|PERMISSION_DENIED|permission denied|not have permission|required \"\S+\" permission",
        FailureKind.PERMISSION,
    ),
    # Texts of invalid requests. A node pool in state ERROR has a text, and often no code.
    text_rule(
        r"invalid value for field|requested invalid target size|can't be specified with|is not supported"
        r"|is incorrect for the requested resources|invalid TPU topology|is not a valid size|not specified"
        r"|must be a match of regex|INVALID_ARGUMENT",
        FailureKind.INVALID,
    ),
    # Not all machines were available (code from SkyPilot). Google often adds a better reason, so this rule is last.
    text_rule("VM_MIN_COUNT_NOT_REACHED", FailureKind.STOCKOUT),
)


#: Placeholder of a missing permission in remedies; it remains if Google's text does not name the permission.
PERMISSION = "the permission named here"
_LACKS = re.compile(r"""Required ['"]([\w.]+)['"] permission""")


def remedy_of(text: str, *, accounts: str, again: str, otherwise: str) -> str:
    """Return the remedy for a text about missing permissions; `otherwise` if no rule about service accounts matches.

    `accounts` names where users set the account. `again` ends the other remedies, such as "create is retried".
    PERMISSION in `otherwise` is replaced by the permission that the text names.
    """
    if re.search(_ACT_AS, text, re.IGNORECASE):
        return f"Grant the provisioner's identity roles/iam.serviceAccountUser on that service account; the {again}."
    if re.search(NO_SUCH_ACCOUNT, text, re.IGNORECASE):
        return f"Create it, or name another in {accounts}; the {again}."
    match = re.search(_LACKS, text)
    return otherwise.replace(PERMISSION, match[1]) if match is not None else otherwise


#: Texts of preconditions that hold later without a change by users. Used only if no rule matches the text.
PASSING = re.compile(r"is currently|please wait|try again|in progress", re.IGNORECASE)

_STATUSES = frozenset(map(int, HTTPStatus))
#: HTTP codes whose text takes precedence over the code. 401 and 404 are unambiguous; the text of a 5xx may be wrong.
_TEXT_DECIDES = frozenset({400, 403, 409, 412, 429})
#: Kinds of failure for which the text takes precedence over the reason: a 429 for too many operations, or for a full
#: reservation, may have the reason of a rate limit. QUOTA is left out: texts of rate limits and quotas are alike.
SURER_THAN_REASONS = frozenset(
    {FailureKind.TOO_MANY_OPERATIONS, FailureKind.OPERATION_IN_THE_WAY, FailureKind.STOCKOUT}
)
#: Kinds of failure by reason. Earlier entries take precedence. Reasons in error.details are in capitals.
_REASONS: Mapping[str, FailureKind] = {
    **dict.fromkeys(
        ("resourceInUseByAnotherResource", "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"), FailureKind.OPERATION_IN_THE_WAY
    ),
    **dict.fromkeys(("resourceNotReady", "RESOURCE_NOT_READY"), FailureKind.OPERATION_IN_THE_WAY),
    # A 403 with one of these reasons is Google's older form of 429.
    **dict.fromkeys(("rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED"), FailureKind.UNAVAILABLE),
    **dict.fromkeys(("quotaExceeded", "QUOTA_EXCEEDED"), FailureKind.QUOTA),
}


class CodeRow(NamedTuple):
    """Kinds of failure of an error code, by kind of call: `change` is for updates and deletes."""

    read: FailureKind
    create: FailureKind
    change: FailureKind

    def of(self, call: Call) -> FailureKind:
        """Return the kind of failure for a kind of call."""
        return self.read if call is Call.READ else self.create if call is Call.CREATE else self.change


def same(kind: FailureKind) -> CodeRow:
    """Return the row of a code that has the same kind of failure for every call."""
    return CodeRow(read=kind, create=kind, change=kind)


#: Kinds of failure of a call whose outcome is unknown, such as after a 5xx or a lost response.
LOST = CodeRow(read=FailureKind.UNAVAILABLE, create=FailureKind.UNKNOWN_OUTCOME, change=FailureKind.UNKNOWN_OUTCOME)
CODES: Mapping[int, CodeRow] = {
    400: same(FailureKind.INVALID),
    401: same(FailureKind.PERMISSION),
    403: same(FailureKind.PERMISSION),
    # For a create, the parent or another resource to which the request refers is missing.
    404: CodeRow(read=FailureKind.NOT_FOUND, create=FailureKind.INVALID, change=FailureKind.NOT_FOUND),
    408: LOST,
    # For a create, the name exists (as in GKE's autoscaler). Updates and deletes conflict with an operation.
    409: CodeRow(FailureKind.UNAVAILABLE, FailureKind.ALREADY_EXISTS, FailureKind.OPERATION_IN_THE_WAY),
    # The resource was changed since it was read (etag, fingerprint). TEXTS has a rule for a 412 because of a policy.
    412: same(FailureKind.OPERATION_IN_THE_WAY),
    429: same(FailureKind.UNAVAILABLE),
    # The client or a proxy cancelled the call on its way.
    499: LOST,
    # The method does not exist, so the call had no effect, and retries would also fail.
    501: same(FailureKind.INVALID),
}


def row_of(code: int) -> CodeRow:
    """Return the kinds of failure of an HTTP code, used if nothing else in the response determines the kind."""
    # A 3xx comes from an address that redirects instead of serving the API.
    unlisted = same(FailureKind.INVALID if code >= 400 else FailureKind.UNAVAILABLE)
    return CODES.get(code, unlisted if 300 <= code < 500 else LOST)


def status_label(code: int) -> str:
    """Return an HTTP status as a label of metrics, "none" for 0. All unknown codes share the label "other"."""
    return "none" if not code else str(code) if code in _STATUSES else "other"


@dataclass(frozen=True, slots=True)
class Answer:
    """An error response, with the fields that could be read."""

    code: int
    message: str
    status: str
    reasons: frozenset[str]
    retry_after_seconds: float | None
    from_google: bool


def kind_of_text(text: str, rules: Sequence[TextRule]) -> FailureKind | None:
    """Return the kind of failure that a text shows; None if no rule matches."""
    return next((kind for pattern, kind in rules if pattern.search(text)), None)


def kind_of_answer(answer: Answer, call: Call, rules: Sequence[TextRule]) -> FailureKind:
    """Return the kind of failure of an error response, whose message must no longer contain users' values."""
    if not answer.from_google and answer.code < 500:
        # The response is from a proxy or another server. Its 404, for example, does not mean a missing resource.
        return FailureKind.PERMISSION if answer.code in (401, 403, 407) else FailureKind.UNAVAILABLE
    kind = kind_of_text(answer.message, rules) if answer.code in _TEXT_DECIDES else None
    # After a 5xx, text and reasons are ignored, because they may be wrong.
    if kind not in SURER_THAN_REASONS and answer.code < 500:
        kind = next((_REASONS[reason] for reason in _REASONS if reason in answer.reasons), kind)
    if kind is not None:
        return kind
    if answer.code == 409 and answer.status == "ABORTED":
        return FailureKind.OPERATION_IN_THE_WAY
    precondition = answer.status == "FAILED_PRECONDITION" or "failedPrecondition" in answer.reasons
    if precondition and answer.code in _TEXT_DECIDES and PASSING.search(answer.message):
        return FailureKind.OPERATION_IN_THE_WAY
    return row_of(answer.code).of(call)


#: Replaces a removed value, so that the words around the value remain separate.
GAP = "…"
#: Minimum characters of a removed value. Shorter values alone match no rule.
_MIN_VALUE = 4
_MAX_TEXT = 10_000
#: Segments of resource paths that are Google's words, so `without_echoes` keeps them.
_COLLECTIONS = frozenset(
    {
        "projects", "global", "regions", "zones", "locations", "networks", "subnetworks", "reservations",
        "reservationBlocks", "reservationSubBlocks", "keyRings", "cryptoKeys", "images", "disks", "resourcePolicies",
        "instanceTemplates", "instanceGroupManagers", "instances",
    }
)  # fmt: skip


def without_echoes(text: str, values: Iterable[str]) -> str:
    """Return at most _MAX_TEXT characters of a text, with GAP for users' values, and for the names in users' paths.

    Values within a longer word, short values (_MIN_VALUE), and alphabetic values that may be Google's words remain.
    """
    text = text[:_MAX_TEXT]
    parts = {part for value in values for part in _parts(value) if len(part) >= _MIN_VALUE}
    # An alphabetic value is removed only after a quote or one of `/=:`, because elsewhere it may be Google's word.
    alphabetic = set(filter(str.isalpha, parts))
    for removed, before in ((parts - alphabetic, r"(?<![\w-])"), (alphabetic, r"(?<=['\"`/=:])")):
        if removed:
            # Longer values come first; otherwise a value that is their prefix could match instead.
            alternatives = "|".join(map(re.escape, sorted(removed, key=len, reverse=True)))
            text = re.sub(rf"{before}(?:{alternatives})(?![\w-])", GAP, text)
    return text


def mentions(text: str, name: str) -> bool:
    """Return whether a text contains a name as a separate word; false for an empty name."""
    return bool(name) and re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) is not None


def _parts(value: str) -> Iterator[str]:
    yield value
    # Google may repeat a path in another form than in the request, so the names in the path are also removed.
    if "/" in value:
        yield from (part for part in value.split("/") if part not in _COLLECTIONS)
    if "@" in value:
        yield from value.split("@")
