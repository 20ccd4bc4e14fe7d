"""The table that `tpu-provisioner topologies` prints."""

from __future__ import annotations

import json

import pytest

from provisioner import tpu
from provisioner.cli import main


def table(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[list[list[str]], list[str]]:
    """Run the command; return the rows below the head, split into words after their accelerator, and the notes."""
    assert main(["topologies", *arguments]) == 0
    lines, _, notes = capsys.readouterr().out.partition("\n\n")
    rows, accelerator = [], ""
    for line in lines.splitlines()[1:]:
        assert len(line) <= 80
        if line.startswith(" "):
            rows.append([accelerator, *line.split()])
        else:
            accelerator = line.partition(":")[0]
    return rows, notes.splitlines()


def test_accelerator_has_a_row_for_each_topology_and_machine_type(capsys: pytest.CaptureFixture[str]) -> None:
    rows, notes = table(capsys, "tpu-v6e-slice")
    assert [" ".join(row) for row in rows if row[1] == "2x4"] == [
        "tpu-v6e-slice 2x4 8 ct6e-standard-4t 2 4 multi-host yes",
        "tpu-v6e-slice 2x4 8 ct6e-standard-8t 1 1,2,4*,8 single-host yes",
    ]
    main(["topologies", "tpu-v6e-slice"])
    assert "tpu-v6e-slice: v6e, boot disk hyperdisk-balanced, flex-start\n" in capsys.readouterr().out
    main(["topologies", "tpu-v6e-slice", "-o", "json"])
    found = json.loads(capsys.readouterr().out)["topologies"]
    assert len(found) == len(rows)
    assert [(row["chips_per_pod"], row["on_request"]) for row in found if row["topology"] == "2x4"] == [
        ([4], []),
        ([1, 2, 4, 8], [4]),
    ]
    assert len(rows) == 9
    (note,) = notes
    assert "* only if the pod selects node.kubernetes.io/instance-type" in note


@pytest.mark.parametrize("label", ["tpu-v4-podslice", "tpu-v5p-slice", "tpu7x"])
def test_unlisted_topologies_are_counted_and_shown_with_all(label: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Hundreds of topologies follow the rule without being listed."""
    rows, notes = table(capsys, label)
    everything, more_notes = table(capsys, label, "--all")
    assert [row for row in everything if row[-1] == "yes"] == rows
    unlisted = [row for row in everything if row[-2:] == ["by", "rule"]]
    assert len(unlisted) == len(everything) - len(rows) > 100
    assert notes[0].startswith(f"{label}: {len(unlisted)} more topologies")
    assert not any("more topologies" in note for note in more_notes)


def test_machine_type_on_request_has_a_note_and_no_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """The machine type has the same slices as another one, so its rows would be repetitions."""
    rows, notes = table(capsys, "tpu7x")
    assert {row[3] for row in rows} == {"tpu7x-standard-1t", "tpu7x-standard-4t"}
    assert "tpu7x-ultranet-4t has the same slices as tpu7x-standard-4t" in notes[-1]


def test_an_unknown_accelerator_is_named_with_the_valid_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["topologies", "v6e"])
    said = capsys.readouterr()
    assert said.out == ""
    assert "'v6e' (did you mean tpu-v6e-slice?)" in said.err
    assert all(label in said.err for label in tpu.ACCELERATORS)
