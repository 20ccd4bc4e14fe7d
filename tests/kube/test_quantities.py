"""Tests of Kubernetes' notation of quantities and times."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from provisioner.kube.fields import format_micro_time, format_time, parse_quantity, parse_timestamp


@pytest.mark.parametrize(
    ("raw", "want"),
    [
        (".5", "0.5"),
        ("+1", "1"),
        (4, "4"),
        (0.5, "0.5"),
        ("1n", "0.000000001"),
        ("1u", "0.000001"),
        ("1500m", "1.5"),
        ("1e3", "1000"),
        ("1E3", "1000"),
        ("1E", "1000000000000000000"),
        ("3k", "3000"),
        ("3G", "3000000000"),
        ("3T", "3000000000000"),
        ("3E", "3000000000000000000"),
        ("3Ki", "3072"),
        ("3Gi", "3221225472"),
        ("3Ei", "3458764513820540928"),
        ("0", "0"),
        ("0" * 60 + "4", "4"),
        *((raw, str(2**63 - 1)) for raw in (str(2**63 - 1), str(2**63), "10E", "100e18", "1e2147483647", 2**63)),
        pytest.param("9" * 1_500_000 + "Ei", str(2**63 - 1), id="a million digits"),
        pytest.param(10**5000, str(2**63 - 1), id="an integer of thousands of digits"),
    ],
)
def test_valid_quantity_is_read(raw: object, want: str) -> None:
    """The API server accepts all these forms. Amounts of extended resources may even exceed an int64."""
    assert parse_quantity(raw) == Decimal(want)


@pytest.mark.parametrize(
    "raw",
    [
        *(float("inf"), "NaN", "1e99999999999", "-1", "-10E", -1, "1 Gi", "1ki", "", "1\n", "٣", True, None, []),
    ],
)
def test_invalid_quantity_is_none(raw: object) -> None:
    assert parse_quantity(raw) is None


def test_times_are_read_as_they_are_written() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    assert format_micro_time(moment) == "2026-01-02T03:04:05.678901Z"
    assert format_time(moment) == "2026-01-02T03:04:05Z"
    assert parse_timestamp(format_micro_time(moment)) == moment


@pytest.mark.parametrize(
    ("raw", "want"),
    [
        pytest.param("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), id="UTC"),
        pytest.param(
            "2026-01-02T03:04:05.123456789Z",
            datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC),
            id="nanoseconds are cut",
        ),
        pytest.param(
            "2026-01-02T03:04:05.5+02:00",
            datetime(2026, 1, 2, 1, 4, 5, 500000, tzinfo=UTC),
            id="an offset becomes UTC",
        ),
        pytest.param("2026-13-02T03:04:05Z", None, id="no such month"),
        pytest.param("0001-01-01T00:00:00+23:00", None, id="before the first year"),
        pytest.param("2026-01-02", None, id="a date alone"),
        pytest.param("2026-01-02T03:04:05", None, id="without a zone"),
        pytest.param(5, None, id="a number"),
    ],
)
def test_timestamp_is_read_in_utc(raw: object, want: datetime | None) -> None:
    assert parse_timestamp(raw) == want
