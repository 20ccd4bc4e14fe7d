"""What the words and exit codes of the `vipu` command mean. Pure.

No document shows the real texts, but for `VERB NOUN (NAME): success`; the server speaks gRPC, whose Go library writes
`rpc error: code = CODE desc = WORDS`. A change that ended in unknown words has an unknown outcome, and what is not
recognised is no stockout. Names that were asked for are taken out of the words before they are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from provisioner.model import bounds
from provisioner.model.capacity import Failure, FailureKind

_LONGEST_MESSAGE = 500
_LONGEST_READ = 2_000
_GAP = "…"
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


class Verb(Enum):
    """What a call does, as far as it changes the meaning of its failure."""

    READ = "read"
    #: A read about one partition.
    GET = "get"
    CREATE = "create"
    REMOVE = "remove"


class _Rule(NamedTuple):
    pattern: re.Pattern[str]
    kind: FailureKind
    verbs: frozenset[Verb]


_ALL = frozenset(Verb)
_OF_ONE = frozenset({Verb.GET, Verb.REMOVE})
_CREATE = frozenset({Verb.CREATE})
_CHANGES = frozenset({Verb.CREATE, Verb.REMOVE})


def _rule(pattern: str, kind: FailureKind, verbs: frozenset[Verb] = _ALL) -> _Rule:
    return _Rule(re.compile(pattern, re.IGNORECASE | re.DOTALL), kind, verbs)


#: The first match wins. All are assumed, but for those of Go's and cobra's libraries, which are marked.
_RULES: Sequence[_Rule] = (
    # What was lost on its way may still have its effect (Go: grpc, net).
    _rule(r"deadline exceeded|transport is closing|connection reset|\bEOF\b", FailureKind.UNKNOWN_OUTCOME),
    # Nothing was sent (Go: net).
    _rule(r"connection refused|no such host|network is unreachable|no route to host", FailureKind.UNAVAILABLE),
    _rule(r"\bdial \w+\b[^\n]*\btimeout", FailureKind.UNAVAILABLE),
    _rule(r"timed? ?out", FailureKind.UNKNOWN_OUTCOME),
    # The command does not know what it is told to do (cobra, pflag): it has sent nothing.
    _rule(
        r"unknown shorthand flag|unknown flag|unknown command|required flag|invalid argument \"", FailureKind.INVALID
    ),
    _rule(r"accepts \d+ arg|flag needs an argument", FailureKind.INVALID),
    _rule(r"unauthenticated|not authori[sz]ed|access key", FailureKind.PERMISSION),
    # It may be about a file, which the command writes when the change is made.
    _rule(r"permission denied|access denied", FailureKind.PERMISSION, frozenset({Verb.READ, Verb.GET})),
    # Of an allocation, user or cluster that is not there somebody has to change something.
    _rule(
        r"\b(allocation|cluster|user)s?\b((?!partition)[^.])*(not found|does not exist|not exist)", FailureKind.INVALID
    ),
    _rule(r"\bno such (allocation|cluster|user)\b", FailureKind.INVALID),
    _rule(r"already exists|already in use by a partition", FailureKind.ALREADY_EXISTS, _CREATE),
    _rule(r"partition\b[^.]*(not found|does not exist|not exist)|no such partition", FailureKind.NOT_FOUND, _OF_ONE),
    _rule(
        r"(not enough|insufficient|no (free|available)|not available|unable to (find|allocate)|cannot (find|allocate))"
        r"[^.]*\b(IPU|agent|resource)s?\b|\b(IPU|resource)s?\b[^.]*\b(not (enough|available)|exhausted|unavailable)",
        FailureKind.STOCKOUT,
        _CREATE,
    ),
    _rule(r"in progress|is busy|being (created|removed|reset)|try again later", FailureKind.OPERATION_IN_THE_WAY),
    _rule(r"power of (2|two)|invalid (partition|size|id)\b|not supported", FailureKind.INVALID, _CHANGES),
    # gRPC's codes, where the words say nothing that is known, without those that leave open what happened.
    _rule(r"\bcode = AlreadyExists\b", FailureKind.ALREADY_EXISTS, _CREATE),
    _rule(r"\bcode = NotFound\b", FailureKind.NOT_FOUND, _OF_ONE),
    _rule(r"\bcode = ResourceExhausted\b", FailureKind.STOCKOUT, _CREATE),
    _rule(r"\bcode = (InvalidArgument|OutOfRange|Unimplemented)\b", FailureKind.INVALID),
    _rule(r"\bcode = (PermissionDenied|Unauthenticated)\b", FailureKind.PERMISSION),
    _rule(r"\bcode = (FailedPrecondition|Aborted)\b", FailureKind.OPERATION_IN_THE_WAY),
)
_UNSUPPORTED = re.compile(r"unknown command|code = Unimplemented", re.IGNORECASE)


def failure_of(verb: Verb, said: str, asked: Iterable[str] = (), *, whole: bool = True) -> Failure:
    """Return the failure that words mean, without names that were `asked`; those that are not `whole` mean nothing."""
    return Failure(kind=_kind_of(verb, without(said, asked) if whole else ""), message=message_of(said))


def unsent(said: str) -> Failure:
    """Return the failure of a command that did not run, so that nothing was asked of the server."""
    return Failure(kind=FailureKind.UNAVAILABLE, message=message_of(said))


def is_success(said: str) -> bool:
    """Tell whether a command that changes something says that it did."""
    return re.search(r"\): success\b", said) is not None and re.search(r"\bfailed\b", said) is None


def is_unsupported(said: str) -> bool:
    """Tell whether this version of V-IPU does not have what was asked for at all."""
    return _UNSUPPORTED.search(said) is not None


def message_of(said: str) -> str:
    """Return words for people: printable, in one line, of bounded length."""
    return bounds.cut(" ".join(_UNPRINTABLE.sub(" ", said[:_LONGEST_READ]).split()), _LONGEST_MESSAGE)


def without(said: str, names: Iterable[str]) -> str:
    """Return a text without names, wherever they stand by themselves."""
    text = said[:_LONGEST_READ]
    for name in sorted((name for name in names if name), key=len, reverse=True):
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", _GAP, text)
    return text


def _kind_of(verb: Verb, text: str) -> FailureKind:
    kinds = (rule.kind for rule in _RULES if verb in rule.verbs and rule.pattern.search(text))
    kind = next(kinds, FailureKind.UNKNOWN_OUTCOME)
    return kind if verb in _CHANGES or kind is not FailureKind.UNKNOWN_OUTCOME else FailureKind.UNAVAILABLE
