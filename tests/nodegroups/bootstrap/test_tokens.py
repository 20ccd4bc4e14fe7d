"""Bootstrap tokens of machines, and the metadata in which a machine finds its token."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.nodegroups import writing
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.types import ObjectMeta
from provisioner.nodegroups.bootstrap import tokens
from provisioner.nodegroups.bootstrap.metadata import Join, changed_items
from provisioner.nodegroups.bootstrap.tokens import Token, TokenPlan, parse_secret, plan_tokens
from tests.support.nodegroup_world import encoded

NOW = datetime(2026, 11, 23, 10, 0, tzinfo=UTC)
GROUP = names.group_labels(ObjectMeta(namespace="ns", name="g", uid="1"))


def token(machine: str = "a", left_minutes: float | None = 30, **given: str) -> Token:
    expires_at = None if left_minutes is None else NOW + timedelta(minutes=left_minutes)
    return Token(
        name=given.get("name", f"bootstrap-token-{machine}{left_minutes}"),
        uid="1",
        group_namespace="ns",
        group_name="g",
        machine=machine,
        machine_id=given.get("machine_id", "7"),
        value=given.get("value", "abcdef.0123456789abcdef"),
        expires_at=expires_at,
    )


def machine(name: str = "a", *, number: str = "7") -> tuple[str, str]:
    return (name, number)


#: Tokens by the minutes until they expire; the token under None does not expire.
_LEFT = {minutes: token(left_minutes=minutes) for minutes in (0, 5, 9.9, 10, 30, None)}
_UNREADABLE, _RENEWED = token(value=""), machine(number="8")
#: Existing tokens, machines that have not joined, and the expected plan, by case.
_PLANS: dict[str, tuple[list[Token], list[tuple[str, str]], TokenPlan]] = {
    "no machine": ([], [], TokenPlan()),
    "machine without a token": ([], [machine()], TokenPlan(create=(machine(),))),
    "fault 8: two machines": ([], [machine("b"), machine("a")], TokenPlan(create=(machine("a"), machine("b")))),
    "machine with a token": ([token()], [machine()], TokenPlan(current={"a": token()})),
    "ten minutes left": ([_LEFT[10]], [machine()], TokenPlan(current={"a": _LEFT[10]})),
    "fault 7: less than ten minutes left": (
        [_LEFT[9.9]],
        [machine()],
        TokenPlan(current={"a": _LEFT[9.9]}, create=(machine(),)),
    ),
    "two tokens": ([_LEFT[5], _LEFT[30]], [machine()], TokenPlan(current={"a": _LEFT[30]})),
    "fault 7: expired": ([_LEFT[0]], [machine()], TokenPlan(create=(machine(),), delete=(_LEFT[0],))),
    "fault 8: machine has joined": ([token()], [], TokenPlan(delete=(token(),))),
    "another machine of that name": ([token()], [_RENEWED], TokenPlan(create=(_RENEWED,), delete=(token(),))),
    "token without an end": ([_LEFT[None]], [machine()], TokenPlan(create=(machine(),), delete=(_LEFT[None],))),
    "unreadable token": ([_UNREADABLE], [machine()], TokenPlan(create=(machine(),), delete=(_UNREADABLE,))),
}


@pytest.mark.parametrize(("have", "machines", "want"), _PLANS.values(), ids=_PLANS)
def test_each_machine_that_has_not_joined_has_one_valid_token(
    have: list[Token], machines: list[tuple[str, str]], want: TokenPlan
) -> None:
    assert plan_tokens(have, machines, NOW) == want


_MACHINES = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from("12")), max_size=3, unique_by=lambda pair: pair[0]
)
_TOKENS = st.lists(
    st.builds(
        Token,
        name=st.text(max_size=3),
        uid=st.just("1"),
        group_namespace=st.just("ns"),
        group_name=st.just("g"),
        machine=st.sampled_from("abcd"),
        machine_id=st.sampled_from("12"),
        value=st.sampled_from(["", "abcdef.0123456789abcdef"]),
        expires_at=st.none() | st.integers(-5, 35).map(lambda minutes: NOW + timedelta(minutes=minutes)),
    ),
    max_size=6,
)


@given(_TOKENS, _MACHINES)
def test_machine_without_a_token_that_lasts_gets_one(have: list[Token], machines: list[tuple[str, str]]) -> None:
    plan = plan_tokens(have, machines, NOW)
    for pair in machines:
        held = plan.current.get(pair[0])
        lasts = held is not None and held.expires_at is not None and held.expires_at - NOW >= tokens.LEAST_LEFT
        assert (pair in plan.create) == (not lasts)
        assert held is None or held.machine_id == pair[1]
    assert not set(plan.delete) & set(plan.current.values())


@given(_TOKENS, _MACHINES)
def test_plan_is_empty_after_it_was_executed(have: list[Token], machines: list[tuple[str, str]]) -> None:
    plan = plan_tokens(have, machines, NOW)
    made = [token(name, 30, machine_id=number, name=f"new-{name}") for name, number in plan.create]
    left = [existing for existing in have if existing not in plan.delete]
    again = plan_tokens([*left, *made], machines, NOW)
    assert (again.create, again.delete) == ((), ())


def test_fault_8_tokens_are_drawn_from_the_secure_random_source(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def choice(symbols: str) -> str:
        drawn.append(symbols)
        return symbols[0]

    monkeypatch.setattr("secrets.choice", choice)
    assert writing.draw_token() == "aaaaaa.aaaaaaaaaaaaaaaa"
    assert set(drawn) == {"abcdefghijklmnopqrstuvwxyz0123456789"}


def test_secret_is_a_bootstrap_token_of_kubernetes() -> None:
    secret = tokens.secret_of(
        "abcdef.0123456789abcdef", group=GROUP, machine="g-mig-x1b2", machine_id="7", expires_at=NOW + tokens.LIFE
    )
    assert secret == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": "bootstrap-token-abcdef",
            "namespace": "kube-system",
            "labels": {
                "cloud.google.com/tpu-node-group-namespace": "ns",
                "cloud.google.com/tpu-node-group-name": "g",
                "tpu-provisioner.cloud.google.com/machine": "g-mig-x1b2",
                "tpu-provisioner.cloud.google.com/machine-id": "7",
            },
        },
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": "abcdef",
            "token-secret": "0123456789abcdef",
            "expiration": "2026-11-23T10:30:00Z",
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
            "auth-extra-groups": tokens.GROUP,
            "description": "Lets the machine g-mig-x1b2 join the cluster. Created by tpu-provisioner.",
        },
    }


def test_fault_9_labels_of_the_longest_names_fit() -> None:
    group = names.group_labels(ObjectMeta(namespace="n" * 63, name="g" * names.NAME_BUDGET, uid="1"))
    secret = tokens.secret_of(writing.draw_token(), group=group, machine="m" * 63, machine_id="9" * 20, expires_at=NOW)
    assert max(map(len, secret["metadata"]["labels"].values())) == 63


SECRET = tokens.secret_of("abcdef.0123456789abcdef", group=GROUP, machine="m", machine_id="7", expires_at=NOW)


def stored(**metadata: str) -> dict[str, Any]:
    return {**encoded(SECRET), "metadata": {**SECRET["metadata"], "uid": "u-1", **metadata}}


def test_created_token_is_parsed_unchanged() -> None:
    assert parse_secret(stored()) == Token(
        name="bootstrap-token-abcdef",
        uid="u-1",
        group_namespace="ns",
        group_name="g",
        machine="m",
        machine_id="7",
        value="abcdef.0123456789abcdef",
        expires_at=NOW,
    )


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"type": "Opaque"}, id="of another type"),
        pytest.param({"metadata": {"name": "bootstrap-token-x", "namespace": "kube-system"}}, id="of nobody"),
        pytest.param(stored(namespace="default"), id="of another namespace"),
        pytest.param(stored(name="other"), id="of another name"),
    ],
)
def test_secret_that_this_controller_did_not_create_is_ignored(change: dict[str, object]) -> None:
    assert parse_secret({**stored(), **change}) is None


@pytest.mark.parametrize(
    "data",
    [
        pytest.param({}, id="nothing in it"),
        pytest.param({"token-id": "YWJjZGVm", "token-secret": "?"}, id="no base64"),
        pytest.param({"token-id": "YWJjZGVm", "token-secret": "gICA"}, id="no text"),
        pytest.param({"token-id": "YWJjZGVm", "token-secret": "c2hvcnQ="}, id="a secret that is too short"),
        pytest.param({"token-id": 7, "expiration": None}, id="other types"),
    ],
)
def test_malformed_token_is_read_so_that_it_can_be_deleted(data: dict[str, object]) -> None:
    found = parse_secret({**stored(), "data": data})
    assert found is not None
    assert (found.value, found.expires_at) == ("", None)


@given(st.recursive(st.none() | st.text() | st.integers(), lambda inner: st.dictionaries(st.text(), inner)))
def test_any_json_is_read_without_an_exception(raw: object) -> None:
    assert parse_secret(raw) is None
    assert parse_secret({"metadata": raw, "data": raw, "type": tokens.SECRET_TYPE}) is None


TOKEN, OTHER = "abcdef.0123456789abcdef", "ghijkl.0123456789abcdef"
HASH = "sha256:" + "0a" * 32
LABELS = {"cloud.google.com/gke-tpu-topology": "2x2x2", "cloud.google.com/gke-tpu-accelerator": "tpu7x"}
WRITTEN_LABELS = "cloud.google.com/gke-tpu-accelerator=tpu7x,cloud.google.com/gke-tpu-topology=2x2x2"


def join(token: str = TOKEN, api_server: str = "10.0.0.2:6443", ca_hash: str = HASH) -> Join:
    return Join(token=token, api_server=api_server, ca_hash=ca_hash, kubernetes_version="1.34")


WRITTEN = {
    "startup-script": "#!/bin/bash",
    "kubeadm-join-token": TOKEN,
    "kubeadm-control-plane-ip": "10.0.0.2",
    "kubeadm-ca-hash": HASH,
    "kubeadm-kubernetes-version": "1.34",
    "kube-labels": WRITTEN_LABELS,
}


@pytest.mark.parametrize(
    ("have", "given_join", "want"),
    [
        pytest.param({"startup-script": "#!/bin/bash"}, join(), WRITTEN, id="a new machine gets everything"),
        pytest.param(WRITTEN, join(), None, id="fault 3: what is there is not written again"),
        pytest.param(
            WRITTEN,
            join(OTHER),
            {**WRITTEN, "kubeadm-join-token": OTHER},
            id="fault 7: a token that was replaced is written though there is one",
        ),
        pytest.param(
            WRITTEN,
            join(api_server="api.example.com:8443"),
            {**WRITTEN, "kubeadm-control-plane-ip": "api.example.com", "kubeadm-control-plane-port": "8443"},
            id="another address is written",
        ),
        pytest.param({**WRITTEN, "kubeadm-control-plane-port": "8443"}, join(), WRITTEN, id="the usual port is not"),
        pytest.param(WRITTEN, None, None, id="what joins by itself keeps its keys"),
        pytest.param({}, None, {"kube-labels": WRITTEN_LABELS}, id="but has the labels"),
        pytest.param(
            {"kube-labels": "zone=a, cloud.google.com/gke-tpu-topology=4x4,x"},
            None,
            {"kube-labels": f"{WRITTEN_LABELS},zone=a"},
            id="beside those of others, and in place of what is none",
        ),
    ],
)
def test_metadata_of_a_machine_is_changed_only_if_it_differs(
    have: dict[str, str], given_join: Join | None, want: dict[str, str] | None
) -> None:
    assert changed_items(have, labels=LABELS, join=given_join) == want


_WORDS = st.text(st.characters(codec="ascii", exclude_characters=","), min_size=1, max_size=6)


@given(
    st.dictionaries(st.sampled_from([*WRITTEN, "kubeadm-control-plane-port", "mine"]), st.text(max_size=20)),
    st.dictionaries(_WORDS.filter(lambda key: key.strip() == key and "=" not in key), _WORDS, max_size=3),
    st.none() | st.just(join()) | st.just(join(api_server="a:1")),
)
def test_fault_3_metadata_is_not_written_twice(
    have: dict[str, str], labels: dict[str, str], given_join: Join | None
) -> None:
    written = changed_items(have, labels=labels, join=given_join)
    now = have if written is None else written

    assert changed_items(now, labels=labels, join=given_join) is None
    assert now.get("mine") == have.get("mine")


def test_repr_of_a_token_or_of_the_join_data_does_not_contain_the_secret() -> None:
    assert "0123456789abcdef" not in f"{token()!r} {join()!r}"
