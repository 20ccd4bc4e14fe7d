"""Classifies errors of Compute Engine. Rules for messages ignore texts that users chose, such as names. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from provisioner.google import errors as google_errors
from provisioner.google.errors import Answer, Call, remedy_of, row_of, text_rule, without_echoes
from provisioner.model.capacity import Failure, FailureKind
from provisioner.nodegroups.api.codes import WORK_CODES

GRANT_HELP = f"Grant the provisioner's identity {google_errors.PERMISSION} on the project of the group."
_LONGEST_MESSAGE = 2000

_IN_THE_WAY = FailureKind.OPERATION_IN_THE_WAY

_TEXTS = (
    # 412 of setMetadata: another client changed the metadata first (Terraform's provider retries these two texts).
    text_rule(r"invalid fingerprint|fingerprint does not match", _IN_THE_WAY),
    # 400 of a delete (Terraform, ingress-gce): a managed instance group still uses the policy or the template.
    text_rule(r"is already being used by", _IN_THE_WAY),
    *google_errors.TEXTS,
)
#: Text of a 400 for an invalid name, zone or region in the URL. Such an address has no resource.
_NO_SUCH_ADDRESS = re.compile(
    r"Invalid value for field '(zone|region|resourcePolicy|instanceTemplate|instanceGroupManager|instance|operation)'"
)


class WorkError(NamedTuple):
    """One error of an operation or of a managed instance group."""

    code: str
    message: str


def help_of(text: str) -> str:
    """Return what to do about a missing permission; `text` is Google's message."""
    accounts = "spec.instanceConfig.serviceAccounts of a new group"
    return remedy_of(text, accounts=accounts, again="call is repeated", otherwise=GRANT_HELP)


def kind_of_answer(answer: Answer, call: Call, values: Iterable[str]) -> FailureKind:
    """Return the kind of failure of an error response; `values` are the texts in the call that users chose."""
    no_such = answer.from_google and answer.code == 400 and _NO_SUCH_ADDRESS.search(answer.message)
    if no_such and call in (Call.READ, Call.DELETE):
        return FailureKind.NOT_FOUND
    cleaned = replace(answer, message=without_echoes(answer.message, values))
    return google_errors.kind_of_answer(cleaned, call, _TEXTS)


def failure_of_work(
    errors: Sequence[WorkError], call: Call, *, http_code: int = 0, values: Iterable[str] = ()
) -> Failure:
    """Return one failure with the messages of the errors and the first known kind. `values`: as `kind_of_answer`."""
    values = tuple(values)
    kinds = [_kind_of_error(error, call, values) for error in errors]
    kind = next((known for known in kinds if known is not None), None)
    if kind is None:
        kind = row_of(http_code).of(call) if 400 <= http_code < 500 else FailureKind.UNAVAILABLE
    if kind is FailureKind.UNKNOWN_OUTCOME:
        kind = FailureKind.UNAVAILABLE
    words = (": ".join(filter(None, error)) or "no reason is given" for error in errors)
    message = "; ".join(words) or (f"HTTP {http_code}" if http_code else "no reason is given")
    if kind is FailureKind.PERMISSION:
        message = f"{message} {help_of(message)}"
    return Failure(kind=kind, message=message[:_LONGEST_MESSAGE])


def _kind_of_error(error: WorkError, call: Call, values: tuple[str, ...]) -> FailureKind | None:
    text = without_echoes(error.message, values)
    row = WORK_CODES.get(error.code)
    if row is not None and error.code != "CONDITION_NOT_MET":
        return row.of(call)
    kind = google_errors.kind_of_text(text, _TEXTS) or google_errors.kind_of_text(error.code, _TEXTS)
    return kind if kind is not None or row is None else row.of(call)
