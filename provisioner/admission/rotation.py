"""When the webhook server's own certificates are made, served and trusted: pure, from what a Secret holds.

Whatever replica finds that a step is due writes it, with the resource version that it has read; no leader is needed.
The next authority is trusted beside the present one; a while later every replica serves the next keys; a while later
the earlier authority is no longer trusted. So at every moment what is served is trusted.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from provisioner.kube import fields

#: How long certificates are valid, and how long before their end the next are made.
VALID = dt.timedelta(days=90)
_BEFORE_THE_END = dt.timedelta(days=30)
#: How long each step of a rotation takes: several times as long as replicas read the Secret, and API servers webhooks.
STEP = dt.timedelta(minutes=10)

_NEXT, _SINCE, _EARLIER = "next", "since", "earlier"
_PARTS = {"certificate_pem": "tls.crt", "key_pem": "tls.key", "authority_pem": "ca.crt"}


class KeysError(ValueError):
    """Certificate or key cannot be used; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """A serving certificate, its key, and the certificate of the authority that signed it, as PEM."""

    certificate_pem: str
    key_pem: str
    authority_pem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the Secret holds."""

    #: None: nothing yet, or nothing that can be used.
    present: Keys | None = None
    #: Made, and not yet served.
    next: Keys | None = None
    since: dt.datetime | None = None
    #: Authorities that were trusted before, and still are.
    earlier: str = ""


#: Until when keys can be used at a moment; raises KeysError where they cannot.
ValidUntil = Callable[[Keys], dt.datetime]


def advance(
    state: State,
    now: dt.datetime,
    *,
    make: Callable[[], Keys],
    valid_until: ValidUntil,
    announced: bool = True,
    served: Keys | None = None,
) -> State:
    """Return what the Secret is to hold; the same where nothing is due.

    `announced`: webhooks trust all that `trusted` says of this state, without which the next step does not begin.
    `served`: what this replica serves.
    """
    present, following = _usable(state.present, valid_until), _usable(state.next, valid_until)
    if present is None:
        # Replicas of another release, or with another clock, may still serve what is of no use here.
        earlier = state.present.authority_pem if state.present is not None else ""
        kept = _usable(served, valid_until)
        if kept is not None:
            # Somebody deleted or damaged the Secret. What is served and trusted is replaced in good order.
            return State(present=kept, next=following or make(), since=now, earlier=earlier)
        return State(present=following or make(), since=now, earlier=earlier)
    if state.since is None or state.since > now:
        # The clock was set back, or somebody wrote the Secret: a step takes its whole time again.
        return replace(state, present=present, next=following, since=now)
    passed = now - state.since >= STEP
    state = replace(state, present=present, next=following)
    if following is not None:
        if not announced:
            return replace(state, since=now)
        if not passed:
            return state
        return State(present=following, since=now, earlier=present.authority_pem)
    if state.earlier and passed:
        return replace(state, earlier="", since=now)
    if not state.earlier and valid_until(present) - now <= _BEFORE_THE_END:
        return replace(state, next=make(), since=now)
    return state


def is_dated(state: State, looked: dt.datetime, now: dt.datetime, *, until: dt.datetime) -> bool:
    """Whether what is served `until` a moment may not be trusted: others may have replaced it since `looked`."""
    rotating = state.next is not None or until - now <= _BEFORE_THE_END
    return until <= now or (rotating and now - looked >= STEP)


def trusted(state: State) -> str:
    """Return the authorities that API servers are to trust, as PEM."""
    found = (each.authority_pem for each in (state.present, state.next) if each is not None)
    # Somebody may have written one without its last newline: with the next in the same line nobody reads either.
    return "\n".join(dict.fromkeys([*found, *filter(None, [state.earlier])]))


def read_state(data: Mapping[str, str]) -> State:
    """Read the texts of a Secret; what is missing or cannot be read counts as absent."""
    return State(
        present=_read_keys(data, ""),
        next=_read_keys(data, f"{_NEXT}-"),
        since=fields.parse_timestamp(data.get(_SINCE)),
        earlier=data.get(f"{_EARLIER}-ca.crt", ""),
    )


def write_state(state: State) -> dict[str, str]:
    """Return the texts of the Secret; empty ones for what there is not, so that they replace what was there."""
    written = {_SINCE: state.since.isoformat() if state.since is not None else "", f"{_EARLIER}-ca.crt": state.earlier}
    for prefix, keys in (("", state.present), (f"{_NEXT}-", state.next)):
        for field, name in _PARTS.items():
            written[prefix + name] = getattr(keys, field) if keys is not None else ""
    return written


def _read_keys(data: Mapping[str, str], prefix: str) -> Keys | None:
    found = {field: data.get(prefix + name, "") for field, name in _PARTS.items()}
    return Keys(**found) if all(found.values()) else None


def _usable(keys: Keys | None, valid_until: ValidUntil) -> Keys | None:
    if keys is None:
        return None
    try:
        valid_until(keys)
    except KeysError:
        return None
    return keys
