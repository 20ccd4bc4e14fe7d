"""The size that a pod's annotations ask for, and what is said of one that cannot be served."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.partitions import demand, names

_VALUES = st.one_of(st.text(max_size=200), st.integers(-5, 500).map(str), st.none(), st.integers(), st.booleans())


@pytest.mark.parametrize(
    ("annotations", "want"),
    [
        pytest.param({}, None, id="a pod without annotations asks for none"),
        pytest.param({"graphcore.ai/status": "injected"}, None, id="another annotation says nothing"),
        pytest.param({names.IPUS: "1"}, 1, id="one IPU is a partition"),
        pytest.param({names.IPUS: "64"}, 64, id="the largest is served"),
        pytest.param({names.IPU: "4"}, 4, id="the short spelling counts as well"),
        pytest.param({names.IPU: "4", names.IPUS: "4"}, 4, id="both may be there with the same size"),
    ],
)
def test_a_size_is_read(annotations: dict[str, str], want: int | None) -> None:
    assert demand.read_size(annotations, largest=64) == want


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        pytest.param({names.IPUS: "3"}, ["3 IPUs", "ask for 2 or 4."], id="three is no power of two"),
        pytest.param({names.IPUS: "48"}, ["ask for 32 or 64."], id="the largest is proposed, too"),
        pytest.param({names.IPUS: "200"}, ["ask for 64."], id="far above the largest"),
        pytest.param({names.IPUS: "536870912"}, ["has 64"], id="the longest number that is read"),
        pytest.param({names.IPUS: "1073741824"}, ["is '1073741824',"], id="a longer one"),
        pytest.param({names.IPUS: "100"}, ["ask for 64."], id="no power of two that is not served is proposed"),
        pytest.param({names.IPUS: "128"}, ["128 IPUs", "has 64"], id="more than the largest"),
        pytest.param({names.IPUS: "0"}, ["is '0'"], id="none at all is asked for by no annotation"),
        pytest.param({names.IPUS: "-2"}, ["is '-2'"], id="a negative number"),
        pytest.param({names.IPUS: ""}, ["is ''"], id="nothing"),
        pytest.param({names.IPUS: " 4"}, ["is ' 4'"], id="blanks are not trimmed, so what is shown is what counts"),
        pytest.param({names.IPUS: "٤"}, ["is '٤'"], id="digits of other scripts"),
        pytest.param({names.IPUS: "1e1"}, ["is '1e1'"], id="an exponent"),
        pytest.param({names.IPUS: "9" * 300_000}, ["9…, and"], id="an endless number is not computed"),
        pytest.param({names.IPUS: 4}, ["is 4, and"], id="a number where a text belongs"),
        pytest.param({names.IPUS: "4", names.IPU: "2"}, [names.IPUS, names.IPU, "4", "2"], id="two sizes"),
        pytest.param({names.IPUS: "4", names.IPU: "x"}, [f"{names.IPU} is 'x'"], id="one good and one bad"),
    ],
)
def test_what_is_wrong_is_said(annotations: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(demand.Wrong) as caught:
        demand.read_size(annotations, largest=64)
    for word in words:
        assert word in str(caught.value)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(names.SIZE_ANNOTATIONS, _VALUES)), st.sampled_from([1, 64]))
def test_whatever_is_written_there_is_a_size_or_a_short_sentence(annotations: dict[str, Any], largest: int) -> None:
    size, sentence = 1, "."
    try:
        size = demand.read_size(annotations, largest=largest) or 1
    except demand.Wrong as wrong:
        sentence = str(wrong)
    assert 1 <= size <= largest
    assert size.bit_count() == 1
    assert sentence.endswith(".")
    assert sentence.isprintable()
    assert len(sentence) <= 400
