"""Tests of capacity choices as users write them, of token buckets, and of times of waits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.model import bounds, waits
from provisioner.model.capacity import CapacityKind, Zone
from provisioner.model.choices import CapacityChoice, parse_choices, parse_zones, reservation_path

ON_DEMAND = CapacityChoice(kind=CapacityKind.ON_DEMAND)
SPOT = CapacityChoice(kind=CapacityKind.SPOT)
#: Message for the choice `queued`: the reason, and both alternatives.
NOT_SERVED = ("queued capacity is not supported; use flex-start, or let Kueue request slices by ProvisioningRequests",)


def reserved(path: str, zone: str = "") -> CapacityChoice:
    return CapacityChoice(kind=CapacityKind.RESERVATION, reservation=path, zone=Zone(zone))


def spot_in(zone: str) -> CapacityChoice:
    return CapacityChoice(kind=CapacityKind.SPOT, zone=Zone(zone))


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("", (), id="nothing is no choice"),
        pytest.param(" , ,", (), id="commas alone are no choice"),
        pytest.param("on-demand,spot", (ON_DEMAND, SPOT), id="the order is kept"),
        pytest.param("  on-demand ,\n spot, ", (ON_DEMAND, SPOT), id="blanks and a last comma do not matter"),
        pytest.param("reservation/r1, on-demand", (reserved("r1"), ON_DEMAND), id="a reservation of the own project"),
        pytest.param("reservation/projects", (reserved("projects"),), id="a reservation named projects"),
        pytest.param("reservation/project-1/r1", (reserved("projects/project-1/reservations/r1"),), id="shared"),
        pytest.param(
            "reservation/a.b:project-1/r1",
            (reserved("projects/a.b:project-1/reservations/r1"),),
            id="domain",
        ),
        pytest.param(
            "reservation/project-1/r1/b1/s1",
            (reserved("projects/project-1/reservations/r1/reservationBlocks/b1/reservationSubBlocks/s1"),),
            id="a sub-block",
        ),
        pytest.param(
            "spot@us-east5-b, spot @ us-central1-ai1a, spot",
            (spot_in("us-east5-b"), spot_in("us-central1-ai1a"), SPOT),
            id="one kind in one zone, in another, and anywhere, are three choices",
        ),
        pytest.param(
            ",".join(f"reservation/r{number}" for number in range(32)),
            tuple(reserved(f"r{number}") for number in range(32)),
            id="as many as are read",
        ),
    ],
)
def test_valid_choices_are_read(text: str, want: tuple[CapacityChoice, ...]) -> None:
    assert parse_choices(text) == want


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("cheap", ["'cheap'", "not one of on-demand, spot, flex-start, reservation/NAME"], id="no kind"),
        pytest.param("queued", ["has 'queued'", *NOT_SERVED], id="queued capacity"),
        pytest.param("on-demand, Spot", ["'Spot'", "spot"], id="capitals"),
        pytest.param("on demand", ["'on demand'", "on-demand"], id="a blank within"),
        pytest.param("spot/r1", ["'spot/r1'", "not one of"], id="only reservations have names"),
        pytest.param("spot, on-demand, spot", ["'spot' twice"], id="one choice twice"),
        pytest.param("reservation/r1, reservation/r1", ["'reservation/r1' twice"], id="one reservation twice"),
        pytest.param("spot@us-east5-a, spot @us-east5-a", ["'spot @us-east5-a' twice"], id="twice in one zone"),
        pytest.param("reservation", ["'reservation'", "of the form reservation/NAME"], id="a reservation without name"),
        pytest.param("reservation/", ["'reservation/'", "of the form reservation/NAME"], id="with an empty name"),
        pytest.param("reservation/other-project//b1", ["not of the form"], id="an empty part"),
        pytest.param("reservation/other-project/a/b/c/d", ["not of the form"], id="too many parts"),
        pytest.param(
            "reservation/projects/other-project/reservations/r1",
            ["reservations/r1'", "not of the form", "reservation/PROJECT/NAME"],
            id="the path of the API",
        ),
        pytest.param("reservation/R1", ["'reservation/R1'", "'R1' is not the name of a reservation"], id="a bad name"),
        pytest.param("reservation/" + "r" * 64, ["r" * 64], id="a name that is too long"),
        pytest.param("reservation/r1/b1", ["'r1' is not a project id", "PROJECT/NAME"], id="a block needs a project"),
        pytest.param("reservation/other-project/r1/B", ["'B' is not the name"], id="a bad block"),
        pytest.param("spot@", ["'spot@'", "''", "us-east5-b"], id="an empty zone"),
        pytest.param("spot@us-east5", ["'us-east5' is not a zone"], id="a region is no zone"),
        pytest.param("spot@us-east5-a@us-east5-b", ["'us-east5-a@us-east5-b' is not a zone"], id="two zones"),
        pytest.param("@us-east5-a", ["'@us-east5-a'", "not one of"], id="a zone alone"),
        pytest.param("spot@us-east\u0665-b", ["is not a zone"], id="a digit of another script"),
        pytest.param(",".join(["spot"] * 33), ["has 33 choices, and at most 32 are read"], id="too many choices"),
        pytest.param("x" * 50_000, ["'" + "x" * 79 + "…'"], id="a text of any length is quoted in part"),
    ],
)
def test_invalid_choice_is_named_in_the_error(text: str, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        parse_choices(text)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("", (), id="nothing is no zone"),
        pytest.param(" us-east5-b ,us-east5-a, ", ("us-east5-b", "us-east5-a"), id="the order is kept"),
        pytest.param("us-east5-b, us-east5-a, us-east5-b", ("us-east5-b", "us-east5-a"), id="a zone twice counts once"),
        pytest.param("us-central1-ai1a", ("us-central1-ai1a",), id="an AI zone"),
    ],
)
def test_valid_zones_are_read(text: str, want: tuple[str, ...]) -> None:
    assert parse_zones(text) == want


@pytest.mark.parametrize(
    "zone", ["us-east5", "us-east5-", "us_east5_a", "US-EAST5-A", "us-east-a", "us-east5-a-b", "*"]
)
def test_invalid_zone_is_named_in_the_error(zone: str) -> None:
    with pytest.raises(ValueError, match="us-east5-b") as caught:
        parse_zones(f"us-east5-a, {zone}")
    assert repr(zone) in str(caught.value)


def test_block_of_the_own_project_is_shown_without_a_project() -> None:
    assert str(reserved(reservation_path("r1", block="b1"))) == "reservation r1/b1"


_NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
_PROJECTS = st.from_regex(r"[a-z][-a-z0-9]{4,28}[a-z0-9]", fullmatch=True).filter(lambda text: text != "projects")
_ZONES = st.from_regex(r"[a-z]{2,9}-[a-z]{4,9}[0-9]-(ai[0-9])?[a-z]", fullmatch=True)
_RESERVATIONS = st.one_of(
    _NAMES,
    st.tuples(_PROJECTS, _NAMES).map("/".join),
    st.tuples(_PROJECTS, _NAMES, _NAMES).map("/".join),
    st.tuples(_PROJECTS, _NAMES, _NAMES, _NAMES).map("/".join),
)
_TERMS = st.one_of(
    st.sampled_from(["on-demand", "spot", "flex-start"]),
    _RESERVATIONS.map("reservation/".__add__),
)
_WRITTEN = st.one_of(_TERMS, st.tuples(_TERMS, _ZONES).map("@".join))


@pytest.mark.timeout(30)  # many random examples
@settings(max_examples=20)
@given(st.lists(_WRITTEN, max_size=6, unique=True))
def test_choices_are_shown_as_they_are_written(parts: list[str]) -> None:
    """A choice is shown with a blank after `reservation`, and with ` in ` instead of `@`."""
    choices = parse_choices(", ".join(parts))
    assert len(choices) == len(parts)
    for part, choice in zip(parts, choices, strict=True):
        assert str(choice) == part.replace("reservation/", "reservation ", 1).replace("@", " in ")


#: Any texts, and texts of parts of choices: almost valid texts are the most likely to show mistakes of the parser.
_TEXTS = st.one_of(
    st.text(max_size=40),
    st.lists(
        st.one_of(
            st.sampled_from(["reservation", "spot", "/", "@", ",", " ", "us-east5-b", "projects", "r1"]),
            st.text(max_size=3),
        ),
        max_size=12,
    ).map("".join),
)


@given(_TEXTS)
def test_any_text_is_read_or_named_in_the_error(text: str) -> None:
    try:
        choices = parse_choices(text)
    except ValueError as error:
        words = str(error)
        assert any(bounds.quoted(part.strip()) in words for part in text.split(",") if part.strip())
        return
    assert len(choices) == len(set(choices)) == sum(bool(part.strip()) for part in text.split(","))


def test_budget_allows_a_burst_and_then_a_rate() -> None:
    budget = waits.TokenBucket(burst=2.0, per_second=1.0, filled_at=0.0)
    assert [budget.spend(now) for now in (0.0, 0.0, 0.0, 1.0, 1.5)] == [True, True, False, True, False]
    assert budget.fill(99.0) == budget.burst


def test_time_after_the_maximum_is_the_maximum() -> None:
    last = datetime.max.replace(tzinfo=UTC)
    assert waits.after(last - timedelta(seconds=1), 1.0) == waits.after(last, 1.0) == last
