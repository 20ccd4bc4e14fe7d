"""Decides when the webhook server's own certificates are created, served and trusted, from the content of a Secret.

Pure. Any replica for which a step is due writes the Secret, with the resource version that it has read, so no leader is
needed. In a rotation, all webhooks first trust the next authority in addition to the present one. After STEP, every
replica serves the next keys; after another STEP, the earlier authority is no longer trusted. Thus API servers trust
the served certificate during a rotation.
"""

import datetime as dt
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from provisioner.kube import fields

#: Validity of certificates, and the time before its end at which the next ones are created.
VALID = dt.timedelta(days=90)
_BEFORE_THE_END = dt.timedelta(days=30)
#: Duration of a step: several times the intervals at which replicas read the Secret and API servers read the webhooks.
STEP = dt.timedelta(minutes=10)

_NEXT, _SINCE, _EARLIER = "next", "since", "earlier"
_PARTS = {"certificate_pem": "tls.crt", "key_pem": "tls.key", "authority_pem": "ca.crt"}


class KeysError(ValueError):
    """A certificate or key cannot be used; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """A serving certificate, its key, and the certificate of the authority that signed it, as PEM."""

    certificate_pem: str
    key_pem: str
    authority_pem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Content of the Secret."""

    #: Keys to serve; None if a part of the keys is missing in the Secret.
    present: Keys | None = None
    #: Keys to serve next, once all webhooks trust them; None if not created yet.
    next: Keys | None = None
    since: dt.datetime | None = None
    #: Earlier authorities that are still trusted, as PEM.
    earlier: str = ""


#: Returns the end of the validity of keys. Raises KeysError if they are not valid now.
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
    """Return the new content of the Secret, which equals the old one if nothing is due.

    `announced` is true if all webhooks trust the authorities that `trusted` returns for this state; otherwise the next
    keys are not served yet. `served` are the keys that this replica serves.
    """
    present, following = usable(state.present, valid_until), usable(state.next, valid_until)
    if present is None:
        # The authority of unusable keys remains trusted: replicas with another release or clock may serve these keys.
        earlier = state.present.authority_pem if state.present is not None else ""
        kept = usable(served, valid_until)
        if kept is not None:
            # The Secret was deleted or damaged. Keys that are served and trusted are replaced by a regular rotation.
            return State(present=kept, next=following or make(), since=now, earlier=earlier)
        return State(present=following or make(), since=now, earlier=earlier)
    if state.since is None or state.since > now:
        # A clock is or was wrong, or a user wrote the Secret: the step starts again.
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
    """Return whether a certificate has expired (`until`), or may have been rotated since the last read (`looked`)."""
    rotating = state.next is not None or until - now <= _BEFORE_THE_END
    return until <= now or (rotating and now - looked >= STEP)


def trusted(state: State) -> str:
    """Return the authorities that API servers must trust, as PEM."""
    found = (keys.authority_pem for keys in (state.present, state.next) if keys is not None)
    # Newlines separate the authorities, because a user may have written an authority without its last newline.
    return "\n".join(dict.fromkeys([*found, *filter(None, [state.earlier])]))


def read_state(data: Mapping[str, str]) -> State:
    """Return the state in the data of a Secret; missing or unreadable parts count as absent."""
    return State(
        present=_read_keys(data, ""),
        next=_read_keys(data, f"{_NEXT}-"),
        since=fields.parse_timestamp(data.get(_SINCE)),
        earlier=data.get(f"{_EARLIER}-ca.crt", ""),
    )


def write_state(state: State) -> dict[str, str]:
    """Return the data of the Secret, with empty texts for absent parts, to overwrite their earlier values."""
    written = {_SINCE: state.since.isoformat() if state.since is not None else "", f"{_EARLIER}-ca.crt": state.earlier}
    for prefix, keys in (("", state.present), (f"{_NEXT}-", state.next)):
        for field, name in _PARTS.items():
            written[prefix + name] = getattr(keys, field) if keys is not None else ""
    return written


def _read_keys(data: Mapping[str, str], prefix: str) -> Keys | None:
    found = {field: data.get(prefix + name, "") for field, name in _PARTS.items()}
    return Keys(**found) if all(found.values()) else None


def usable(keys: Keys | None, valid_until: ValidUntil) -> Keys | None:
    """Return keys if they are valid now, otherwise None."""
    with suppress(KeysError):
        if keys is not None:
            valid_until(keys)
            return keys
    return None
