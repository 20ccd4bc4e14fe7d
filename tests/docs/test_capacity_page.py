"""Tests that settings, annotations, choices and messages in docs/capacity.md are those of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner import constants
from provisioner.model.capacity import FailureKind
from provisioner.settings import OPTIONS
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.planning.create import gangs
from provisioner.slices.planning.memory.backoff import DELAYS
from tests.slices.planning.test_allowlists import CHECKS, written
from tests.slices.planning.test_capacity_requests import TEMPLATE, Asking
from tests.support.models import make_jobset
from tests.support.objects import raw_buffer
from tests.support.settings import settings
from tests.support.world import World

_PAGE = (Path(__file__).parents[2] / "docs" / "capacity.md").read_text(encoding="utf-8")
_EXAMPLES = Path(__file__).parents[2] / "examples"
_OPTIONS = {option.variable: option for option in OPTIONS}
#: First and last of the settings that the page describes, in the order of OPTIONS.
_FIRST, _LAST = "ZONES", "PAUSE_CREATION"


def _refusal(**limit: Any) -> str:
    """Return the message of the Event on a pod whose slice exceeds a limit."""
    world = World(make_jobset("train", namespace="team-a", replicas=2), settings_=settings(**limit))
    world.step()
    (*_, said) = (notice for notice in world.step().notices if notice.reason == EventReason.LIMIT_REACHED)
    return said.message.partition(" is not created: ")[2]


def _refusal_of_buffer(**limit: Any) -> str:
    """Return the reason in the Event on a CapacityBuffer of team-a that exceeds a limit."""
    raw = raw_buffer(replicas=2)
    world = Asking(**limit)
    world.templates = {("team-a", "template"): TEMPLATE}
    world.ask({**raw, "metadata": {**raw["metadata"], "namespace": "team-a"}})
    world.step()
    (*_, said) = (notice for notice in world.step().notices if notice.reason == EventReason.LIMIT_REACHED)
    return said.message.partition(" is not created: ")[2]


def _numberless(words: str) -> str:
    return re.sub(r"\d+", "N", re.sub(r"; place \d+ of \d+", "", words))


def test_page_names_every_setting_of_its_subject() -> None:
    names = list(_OPTIONS)
    wanted = names[names.index(_FIRST) : names.index(_LAST) + 1]

    assert [name for name in wanted if f"`{name}`" not in _PAGE] == []


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(_refusal(max_chips=12), id="MAX_CHIPS"),
        pytest.param(_refusal(max_chips_per_namespace=(("team-a", 12),)), id="MAX_CHIPS_PER_NAMESPACE"),
        pytest.param(
            _refusal_of_buffer(max_requested_chips_per_namespace=(("*", 12),)), id="MAX_REQUESTED_CHIPS_PER_NAMESPACE"
        ),
        pytest.param(_refusal(max_chips_per_accelerator=(("*", 4),)), id="MAX_CHIPS_PER_ACCELERATOR"),
        pytest.param(_refusal(max_pools_per_jobset=1), id="MAX_POOLS_PER_JOBSET"),
        pytest.param(_refusal(max_creates_per_hour=1), id="MAX_CREATES_PER_HOUR"),
        pytest.param(_refusal(pause_creation=True), id="PAUSE_CREATION"),
    ],
)
def test_page_has_the_messages_of_limits(words: str) -> None:
    """The comparison ignores numbers and the end of the message, which has the remedy."""
    assert f"`{_numberless(words).partition('. The administrator')[0]}`" in _numberless(_PAGE)


@pytest.mark.parametrize("variable", CHECKS)
def test_page_has_the_messages_of_lists(variable: str) -> None:
    """The page has the problem without its remedy, and with an example."""
    check, name = CHECKS[variable]
    words = re.escape(check(name, written({variable: "none"}))[0])
    assert re.search(f"`{words.replace(re.escape(name), '[^`]+')}`", _PAGE)


def test_buffer_of_the_page_is_the_example() -> None:
    (text,) = (block for block in re.findall(r"(?s)```yaml\n(.*?)```", _PAGE) if constants.BUFFER_STRATEGY in block)
    template, buffer = yaml.safe_load_all((_EXAMPLES / "capacity-buffer" / "buffer.yaml").read_text("utf-8"))

    assert yaml.safe_load(text)["spec"] == buffer["spec"]
    assert buffer["spec"]["podTemplateRef"] == {"name": template["metadata"]["name"]}


def test_numbers_of_the_page_are_those_of_the_code() -> None:
    stockout, quota = DELAYS[FailureKind.STOCKOUT], DELAYS[FailureKind.QUOTA]
    text = " ".join(_PAGE.split())

    assert f"not tried for {stockout.first_seconds} seconds; each further failure doubles" in text
    assert f"up to {stockout.cap_seconds // 60} minutes. For an exceeded quota" in text
    assert f"it is {quota.first_seconds} seconds, up to {quota.cap_seconds // 60} minutes" in text
    assert f"`PARTIAL_HOLD` ({_OPTIONS['PARTIAL_HOLD'].default.rstrip('m')} minutes)" in text  # type: ignore[union-attr]
    assert f"`NODEPOOL_DELETION_DELAY` ({settings().deletion_delay_seconds:.0f} seconds)" in text
    shortest, longest = (pause.total_seconds() / 60 for pause in (gangs._MIN_PAUSE, gangs._MAX_PAUSE))
    assert f"a pause of {shortest:.0f} to {longest:.0f} minutes follows" in text


def test_example_of_allowed_node_settings_is_read() -> None:
    line = _PAGE.partition("<!-- node settings -->\n```\n")[2].partition("\n")[0]
    variable, _, value = line.partition("=")
    assert len(written({variable: value}).allowed_node_settings) == 4
