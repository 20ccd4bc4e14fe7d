"""Classifies error texts and codes of GKE; the rules for all Google APIs are in `google.errors`. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from provisioner.google import errors
from provisioner.google.errors import (
    GAP,
    NO_SUCH_ACCOUNT,
    PASSING,
    TEXTS,
    Answer,
    Call,
    mentions,
    text_rule,
    without_echoes,
)
from provisioner.model.capacity import GENERATED_NAME, Failure, FailureKind
from provisioner.slices.supplier import SupplierError


class GkeError(SupplierError):
    """The only exception of the GKE client. Its message contains the cause and, if known, what to do."""


#: Rules for texts; the first match wins.
_TEXTS = (
    # Texts of responses with 429 (Terraform issues 15205 and 15579).
    text_rule(r"too many operations|concurrent operations quota", FailureKind.TOO_MANY_OPERATIONS),
    # Texts of 400 FAILED_PRECONDITION (Terraform issues 758, 930, 3650, 7638, 10366; comments in the Go provisioner).
    text_rule(
        r"incompatible operation|operation \S+ is currently"
        r"|is currently being (created|deleted|updated|upgraded|repaired)",
        FailureKind.OPERATION_IN_THE_WAY,
    ),
    # TEXTS classifies a missing account as PERMISSION, which is retried soon, but the request or a setting is wrong.
    text_rule(NO_SUCH_ACCOUNT, FailureKind.INVALID),
    # Text in GKE's autoscaler. The cluster object has reached its maximum size, so that only deletes of pools help.
    text_rule(r"cluster byte size limit", FailureKind.QUOTA),
    *TEXTS,
)

_FAILED_PRECONDITION = 9
#: Kinds of failures by google.rpc.Code, if no rule matches the text. Other codes, such as CANCELLED, are temporary.
#: GKE's autoscaler also treats codes 7, 8 and 16 as persistent.
_KINDS_BY_CODE: Mapping[int, FailureKind] = {
    3: FailureKind.INVALID,  # INVALID_ARGUMENT
    5: FailureKind.INVALID,  # NOT_FOUND of a resource that the request names (network, policy, reservation)
    6: FailureKind.ALREADY_EXISTS,
    7: FailureKind.PERMISSION,  # PERMISSION_DENIED
    8: FailureKind.QUOTA,  # RESOURCE_EXHAUSTED
    _FAILED_PRECONDITION: FailureKind.INVALID,  # unless PASSING matches the text
    11: FailureKind.INVALID,  # OUT_OF_RANGE
    12: FailureKind.INVALID,  # UNIMPLEMENTED
    16: FailureKind.PERMISSION,  # UNAUTHENTICATED
}


def classify_message(code: int | None, text: str, values: Iterable[str] = ()) -> FailureKind:
    """Return the kind of failure of an operation or node pool. `code` is a google.rpc.Code, 0 or None if missing.

    `values` are texts that users may have written in the request or pool, for `without_echoes`.
    """
    text = _without(text, values)
    kind = errors.kind_of_text(text, _TEXTS)
    if kind is None and code == _FAILED_PRECONDITION and PASSING.search(text):
        return FailureKind.OPERATION_IN_THE_WAY
    return kind or _KINDS_BY_CODE.get(code or 0, FailureKind.UNAVAILABLE)


def _without(text: str, values: Iterable[str]) -> str:
    return GENERATED_NAME.sub(GAP, without_echoes(text, values))


#: Texts about resources that are missing or not ready. GKE documents the code INVALID_ARGUMENT, but no text.
_MISSING = re.compile(r"not (be )?found|not exist|not ready", re.IGNORECASE)


def message_names(failure: Failure, name: str) -> bool:
    """Return whether a create was rejected as invalid with a message that mentions the resource `name`."""
    return failure.kind is FailureKind.INVALID and mentions(failure.message, name)


def says_missing(failure: Failure, name: str) -> bool:
    """Return whether a create was rejected because the resource `name` does not exist or is not ready."""
    return message_names(failure, name) and _MISSING.search(failure.message) is not None


def kind_of_answer(answer: Answer, call: Call, values: Iterable[str]) -> FailureKind:
    """Return the kind of an error response to a call; `values` are texts in the call that users may have written."""
    return errors.kind_of_answer(replace(answer, message=_without(answer.message, values)), call, _TEXTS)
