"""Interprets the messages of the `vipu` command. Pure.

The real messages are not documented, except for `VERB NOUN (NAME): success`. The server uses gRPC, whose Go library
writes `rpc error: code = CODE desc = WORDS`. A create or remove that ended with an unknown message has an unknown
outcome. Names from the request are removed from a message before the rules are applied.
"""

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
    """Kind of a call, on which the meaning of a message depends."""

    READ = "read"
    #: A read of one partition.
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


#: The first matching rule applies. Rules are assumptions, unless their comment names a Go library in parentheses.
_RULES: Sequence[_Rule] = (
    # A request that was lost on its way may still take effect (Go: grpc, net).
    _rule(r"deadline exceeded|transport is closing|connection reset|\bEOF\b", FailureKind.UNKNOWN_OUTCOME),
    # The request was not sent (Go: net).
    _rule(r"connection refused|no such host|network is unreachable|no route to host", FailureKind.UNAVAILABLE),
    _rule(r"\bdial \w+\b[^\n]*\btimeout", FailureKind.UNAVAILABLE),
    _rule(r"timed? ?out", FailureKind.UNKNOWN_OUTCOME),
    # The command does not know its arguments, and has sent nothing (cobra, pflag).
    _rule(
        r"unknown shorthand flag|unknown flag|unknown command|required flag|invalid argument \"", FailureKind.INVALID
    ),
    _rule(r"accepts \d+ arg|flag needs an argument", FailureKind.INVALID),
    _rule(r"unauthenticated|not authori[sz]ed|access key", FailureKind.PERMISSION),
    # Only for reads: in a create or remove, the message may concern the file that the command writes after the change.
    _rule(r"permission denied|access denied", FailureKind.PERMISSION, frozenset({Verb.READ, Verb.GET})),
    # The allocation, V-IPU user or cluster does not exist, so the administrator has to change something.
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
    # gRPC codes of messages without a known text, except for the codes that leave the outcome open.
    _rule(r"\bcode = AlreadyExists\b", FailureKind.ALREADY_EXISTS, _CREATE),
    _rule(r"\bcode = NotFound\b", FailureKind.NOT_FOUND, _OF_ONE),
    _rule(r"\bcode = ResourceExhausted\b", FailureKind.STOCKOUT, _CREATE),
    _rule(r"\bcode = (InvalidArgument|OutOfRange|Unimplemented)\b", FailureKind.INVALID),
    _rule(r"\bcode = (PermissionDenied|Unauthenticated)\b", FailureKind.PERMISSION),
    _rule(r"\bcode = (FailedPrecondition|Aborted)\b", FailureKind.OPERATION_IN_THE_WAY),
)
_UNSUPPORTED = re.compile(r"unknown command|code = Unimplemented", re.IGNORECASE)


def failure_of(verb: Verb, message: str, asked: Iterable[str] = (), *, whole: bool = True) -> Failure:
    """Return the failure that `message` means. The names `asked` in the message are ignored.

    If `whole` is false, the command did not exit, so its message does not determine the kind of failure.
    """
    return Failure(kind=_kind_of(verb, without(message, asked) if whole else ""), message=message_of(message))


def unsent(message: str) -> Failure:
    """Return the failure of a command that did not run, or of a read whose output is invalid: nothing was changed."""
    return Failure(kind=FailureKind.UNAVAILABLE, message=message_of(message))


def is_success(output: str) -> bool:
    """Return whether a create or remove reports success."""
    return re.search(r"\): success\b", output) is not None and re.search(r"\bfailed\b", output) is None


def is_unsupported(output: str) -> bool:
    """Return whether the output says that this version of V-IPU lacks the command."""
    return _UNSUPPORTED.search(output) is not None


def message_of(output: str) -> str:
    """Return the message for users: printable, in one line, of bounded length."""
    return bounds.cut(" ".join(_UNPRINTABLE.sub(" ", output[:_LONGEST_READ]).split()), _LONGEST_MESSAGE)


def without(message: str, names: Iterable[str]) -> str:
    """Return a text with the given names replaced, unless they are parts of longer names."""
    text = message[:_LONGEST_READ]
    for name in sorted((name for name in names if name), key=len, reverse=True):
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", _GAP, text)
    return text


def _kind_of(verb: Verb, text: str) -> FailureKind:
    kinds = (rule.kind for rule in _RULES if verb in rule.verbs and rule.pattern.search(text))
    kind = next(kinds, FailureKind.UNKNOWN_OUTCOME)
    return kind if verb in _CHANGES or kind is not FailureKind.UNKNOWN_OUTCOME else FailureKind.UNAVAILABLE
