"""Rotation: every served certificate is trusted, even if replicas read late or write at the same time."""

from __future__ import annotations

import itertools
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.admission import keeper as real
from provisioner.admission.rotation import (
    STEP,
    VALID,
    Keys,
    KeysError,
    State,
    advance,
    is_dated,
    read_state,
    trusted,
    write_state,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)


class Forge:
    """Creates keys whose certificate is the end of their validity as plain text."""

    now, made = NOW, 0

    def make(self) -> Keys:
        self.made += 1
        until = (self.now + VALID).isoformat()
        return Keys(certificate_pem=until, key_pem=f"key-{self.made}", authority_pem=f"<ca-{self.made}>")

    def valid_until(self, keys: Keys) -> datetime:
        until = datetime.fromisoformat(keys.certificate_pem)
        if until <= self.now:
            raise KeysError("it has ended")
        return until

    def advance(self, state: State) -> State:
        return advance(state, self.now, make=self.make, valid_until=self.valid_until)


def test_rotation_trusts_new_keys_then_serves_them_then_drops_the_old_ones():
    forge = Forge()
    seen = [forge.advance(State())]
    for step in (timedelta(days=59, hours=23), timedelta(hours=1), STEP - timedelta(seconds=1), timedelta(seconds=1)):
        forge.now += step
        seen.append(forge.advance(seen[-1]))
    forge.now += STEP
    seen.append(forge.advance(seen[-1]))
    served = [state.present.authority_pem for state in seen if state.present]
    assert served == ["<ca-1>", "<ca-1>", "<ca-1>", "<ca-1>", "<ca-2>", "<ca-2>"]
    both = "<ca-1>\n<ca-2>"
    assert [trusted(state) for state in seen] == ["<ca-1>", "<ca-1>", both, both, "<ca-2>\n<ca-1>", "<ca-2>"]


def test_keys_that_webhooks_do_not_trust_yet_are_not_served():
    forge = Forge()
    state = State(present=forge.make(), next=forge.make(), since=NOW)
    for _ in range(100):
        forge.now += STEP
        state = advance(state, forge.now, make=forge.make, valid_until=forge.valid_until, announced=False)
        assert state.present is not None
        assert state.present.authority_pem == "<ca-1>"
    forge.now += STEP
    assert trusted(forge.advance(state)) == "<ca-2>\n<ca-1>"


def test_expired_keys_are_replaced_immediately():
    forge = Forge()
    state = forge.advance(State())
    forge.now += VALID
    # Replicas with a slow clock may still serve the first keys, so the first authority is still trusted.
    assert trusted(forge.advance(state)) == "<ca-2>\n<ca-1>"


def test_served_keys_are_restored_to_a_lost_secret_and_rotated():
    forge = Forge()
    first = forge.make()
    for lost in (State(), State(present=Keys(certificate_pem=NOW.isoformat(), key_pem="k", authority_pem="<ca-0>"))):
        state = advance(lost, forge.now, make=forge.make, valid_until=forge.valid_until, served=first)
        assert (state.present, state.next is None) == (first, False)
        assert trusted(state).startswith("<ca-1>")
    forge.now += VALID
    state = advance(State(), forge.now, make=forge.make, valid_until=forge.valid_until, served=first)
    assert state.present != first


@pytest.mark.parametrize(
    ("days", "frozen", "rotating", "dated"),
    [
        (1, timedelta(days=2), False, False),
        (59.99, timedelta(minutes=9), False, False),
        (59.99, timedelta(hours=1), False, True),
        (1, timedelta(hours=1), True, True),
        (1, timedelta(minutes=9), True, False),
        (89.99, timedelta(hours=1), False, True),
    ],
    ids=["long before", "a moment", "over the start", "in a rotation", "a moment in a rotation", "over the end"],
)
def test_certificate_is_dated_if_a_rotation_may_have_been_missed(
    days: float, frozen: timedelta, rotating: bool, dated: bool
):
    state, looked = State(next=Forge().make() if rotating else None), NOW + timedelta(days=days)
    assert is_dated(state, looked, looked + frozen, until=NOW + VALID) is dated


def test_next_keys_replace_lost_present_keys():
    forge = Forge()
    state = State(present=None, next=forge.make(), since=NOW)
    assert trusted(forge.advance(state)) == "<ca-1>"
    assert forge.made == 1


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.booleans()), min_size=10, max_size=30))
def test_replicas_that_read_twice_per_step_serve_only_trusted_keys(moves: list[tuple[int, bool, bool]]):
    """A move has the minutes that pass, the replica that steps, and whether the other replica steps as well."""
    forge = Forge()
    secret = forge.advance(State())
    forge.now += VALID - timedelta(days=30, minutes=7)
    views, looked, bundle = [secret, secret], [forge.now, forge.now], trusted(secret)
    for minutes, second, both in moves:
        forge.now += timedelta(minutes=minutes)
        # A replica steps now if its last read of the Secret would be over STEP / 2 old after another 3 minutes.
        late = [forge.now - moment > STEP / 2 - timedelta(minutes=3) for moment in looked]
        for replica in (0, 1):
            if both or replica == int(second) or late[replica]:
                secret = forge.advance(secret)
                views[replica], looked[replica], bundle = secret, forge.now, trusted(secret)
        for view in views:
            assert view.present is not None
            assert view.present.authority_pem in bundle
            forge.valid_until(view.present)


def test_written_state_is_read_unchanged():
    forge = Forge()
    state = State(present=forge.make(), next=forge.make(), since=NOW, earlier="<ca-0>")
    assert read_state(write_state(state)) == state
    assert read_state(write_state(State())) == State()


@pytest.mark.parametrize("data", [{}, {"since": "tomorrow"}, {"since": "2026-03-01"}, {"tls.crt": "x"}, {"ca.crt": ""}])
def test_secret_with_incomplete_data_has_no_present_keys(data: dict[str, str]):
    assert read_state(data).present is None


def test_clock_that_is_set_back_restarts_the_step():
    forge = Forge()
    state = State(present=forge.make(), next=forge.make(), since=NOW + timedelta(hours=3))
    state = forge.advance(state)
    assert state.since == NOW
    assert state.next is not None


def of_year_0(pem: str) -> str:
    """Return a certificate that ends in year 0, which Python's datetime cannot represent."""
    der = ssl.PEM_cert_to_DER_cert(pem)
    before, _, after = der[8:].partition(b"\x30\x1e\x17\x0d")
    parts, size = before + b"\x30\x22" + b"\x18\x0f00000101000000Z" * 2 + after[28:], int.from_bytes(der[6:8]) + 4
    signed = b"\x30\x82" + size.to_bytes(2) + parts
    return ssl.DER_cert_to_PEM_cert(b"\x30\x82" + len(signed).to_bytes(2) + signed)


def test_real_keys_are_valid_for_their_names_and_time():
    made = real.make_keys(["a.b.svc", "a.b.svc.cluster.local"], now=NOW, valid=VALID)
    assert real.valid_until(made, ["a.b.svc"], now=NOW) == NOW + VALID
    with pytest.raises(KeysError, match=r"is not for c\.b\.svc"):
        real.valid_until(made, ["c.b.svc"], now=NOW)
    with pytest.raises(KeysError, match="valid from"):
        real.valid_until(made, ["a.b.svc"], now=NOW + VALID)
    other = real.make_keys(["a.b.svc"], now=NOW, valid=VALID)
    # A user who edits the Secret may remove the last newline.
    stripped = replace(made, authority_pem=made.authority_pem.rstrip())
    context = ssl.create_default_context(cadata=trusted(State(present=stripped, next=other)))
    assert len(context.get_ca_certs()) == 2
    der = ssl.PEM_cert_to_DER_cert(made.certificate_pem).replace(b"\xa0\3\2\1\2", b"\xa0\3\2\1\3", 1)
    of_version_4 = ssl.DER_cert_to_PEM_cert(der)
    assert not real.are_certificates(of_version_4)
    wrong = ("x", of_version_4, of_year_0(made.authority_pem), other.authority_pem, other.key_pem)
    for part, text in itertools.product(("authority_pem", "certificate_pem", "key_pem"), wrong):
        with pytest.raises(KeysError):
            real.valid_until(replace(made, **{part: text}), ["a.b.svc"], now=NOW)
