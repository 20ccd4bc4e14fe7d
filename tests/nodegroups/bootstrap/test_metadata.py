"""What the metadata of machines is to say, and when it is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.nodegroups.bootstrap.metadata import Join, changed_items

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
            join(api_server="[fd00::2]:8443"),
            {**WRITTEN, "kubeadm-control-plane-ip": "[fd00::2]", "kubeadm-control-plane-port": "8443"},
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
        pytest.param({}, join(ca_hash=""), {"kube-labels": WRITTEN_LABELS}, id="half of it is nothing"),
        pytest.param({}, join(token=""), {"kube-labels": WRITTEN_LABELS}, id="without a token there is nothing"),
    ],
)
def test_items(have: dict[str, str], given_join: Join | None, want: dict[str, str] | None) -> None:
    assert changed_items(have, labels=LABELS, join=given_join) == want


_WORDS = st.text(st.characters(codec="ascii", exclude_characters=","), min_size=1, max_size=6)


@given(
    st.dictionaries(st.sampled_from([*WRITTEN, "kubeadm-control-plane-port", "mine"]), st.text(max_size=20)),
    st.dictionaries(_WORDS.filter(lambda key: key.strip() == key and "=" not in key), _WORDS, max_size=3),
    st.none() | st.just(join()) | st.just(join(api_server="a:1")),
)
def test_fault_3_what_was_written_once_is_never_written_again(
    have: dict[str, str], labels: dict[str, str], given_join: Join | None
) -> None:
    written = changed_items(have, labels=labels, join=given_join)
    now = have if written is None else written

    assert changed_items(now, labels=labels, join=given_join) is None
    assert now.get("mine") == have.get("mine")


def test_what_is_needed_shows_no_secret() -> None:
    assert TOKEN not in repr(join())
