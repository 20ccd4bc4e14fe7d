"""Draws docs/terminal.svg, the recording in the README, from real output of the commands in a world of the tests.

python -m tests.docs.recording     # part of `make docs`

The result depends only on the code.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from unittest.mock import patch
from xml.sax.saxutils import escape

import yaml

import provisioner
from provisioner import workloads
from provisioner.cli import main
from provisioner.model.capacity import FailureKind
from provisioner.model.workloads import Workload, WorkloadKind, group_key
from provisioner.settings import OPTIONS
from provisioner.slices.board import About, Board
from tests.docs.shell import ROOT
from tests.support.clock import NOW
from tests.support.models import make_jobset, make_pod
from tests.support.settings import settings
from tests.support.wire_server import Answer, WireServer
from tests.support.world import World, failure

FILE = ROOT / "docs" / "terminal.svg"
MAX_SECONDS = 30.0
_EXAMPLE = "examples/jobset.yaml"
_PLACE = {
    "GCP_PROJECT_ID": "my-project",
    "GCP_CLUSTER_LOCATION": "us-central1",
    "GCP_ZONE": "us-central1-a",
    "GCP_CLUSTER": "my-cluster",
    "NODEPOOL_AUTO_UPGRADE": "off",
    "MAX_CHIPS": "64",
}
_COLUMNS, _ROWS = 100, 14
_CHARACTER, _LINE, _MARGIN, _BAR = 7.83, 18, 14, 26
_TYPING_SECONDS, _OUTPUT_AFTER = 0.9, 1.2
_STOCKOUT = "us-central1-a does not have enough resources available to fulfil the request."


class Scene(NamedTuple):
    """A command and its output, which fill the screen for some seconds."""

    command: str
    output: str
    seconds: float


def scenes() -> Iterator[Scene]:
    """Yield the scenes of the first example, from its plan to its end, with a workload that waits for capacity."""
    yield Scene(f"tpu-provisioner plan -f {_EXAMPLE}", _printed("plan", "-f", str(ROOT / _EXAMPLE)), 5)
    workload = _first_example()
    world = _world_of(workload)
    world.step(seconds=5)
    # The output of kubectl is a literal, which `tests/deploy/test_install_page.py` compares with a real run.
    yield Scene(f"kubectl apply -f {_EXAMPLE}", "jobset.jobset.x-k8s.io/tpu-demo created", 2.5)
    yield Scene("tpu-provisioner status", _asked(world, "status"), 5)
    world.pass_time(190)
    world.finish_creates()
    for pool in world.pools:
        world.bring_nodes(pool)
    for _ in range(3):
        world.step(seconds=5)
        world.schedule()
    yield Scene("tpu-provisioner status", _asked(world, "status"), 4.5)
    world.refuse_create = lambda _: failure(FailureKind.STOCKOUT, _STOCKOUT)
    world.add(make_jobset("late", namespace="team-b"))
    for _ in range(3):
        world.step(seconds=5)
    yield Scene("tpu-provisioner explain late", _asked(world, "explain", "late"), 5.5)
    world.remove_jobset(world.workloads[make_jobset("late", namespace="team-b").uid])
    world.finish(workload)
    world.step(seconds=5)
    yield Scene("tpu-provisioner status", _asked(world, "status"), 5)


def _first_example() -> Workload:
    raw = yaml.safe_load((ROOT / _EXAMPLE).read_text(encoding="utf-8"))
    raw["metadata"] |= {"namespace": "default", "uid": "0b1e7f8a-6f3c-4f0e-9a52-0c8f6a7e1d20"}
    raw["metadata"]["creationTimestamp"] = NOW.isoformat()
    workload = workloads.KINDS[WorkloadKind.JOBSET].parse(raw)
    if workload is None:
        raise AssertionError(f"{_EXAMPLE} is not served")
    return workload


def _world_of(workload: Workload) -> World:
    place = {"project_id": "my-project", "cluster_location": "us-central1", "zone": "us-central1-a"}
    world = World(settings_=settings(**place, cluster="my-cluster", max_chips=64))
    world.workloads[workload.uid] = workload
    (job,) = workload.groups
    for number in range(job.replicas):
        name = f"{workload.name}-{job.name}-{number}"
        for index in range(job.parallelism):
            identity = {"group_name": name, "group_key": group_key(workload.namespace, name)}
            world.put(make_pod(workload, job=number, index=index, name=f"{name}-{index}-abcde", **identity))
    return world


def _asked(world: World, *words: str) -> str:
    about = About(
        release=provisioner.__version__,
        project="my-project",
        location="us-central1",
        cluster="my-cluster",
        identity="tpu-provisioner-7d9f",
        started_at=NOW,
    )
    board = Board(about=about, clock=lambda: world.now, monotonic=world.now.timestamp)
    board.publish(world.snapshot(), world.look(), world.settings, world.now)
    server = WireServer()
    server.answer("GET /api/v1/board", Answer(body=board.everything()[1]))
    try:
        return _printed(*words, "--server", server.url)
    finally:
        server.close()


def _printed(*words: str) -> str:
    """Return the output of a command in a terminal with _COLUMNS columns and with the settings of a cluster."""
    kept = {key: value for key, value in os.environ.items() if key not in {option.variable for option in OPTIONS}}
    printed = io.StringIO()
    environment = {**kept, **_PLACE, "COLUMNS": str(_COLUMNS), "NO_COLOR": "1"}
    with patch.dict(os.environ, environment, clear=True), contextlib.redirect_stdout(printed):
        main(words)
    return printed.getvalue().strip("\n")


def draw(played: Sequence[Scene]) -> str:
    """Return the recording as an animated SVG, which shows the fourth scene if animations are disabled."""
    total = sum(scene.seconds for scene in played)
    if total > MAX_SECONDS:
        raise ValueError(f"the recording takes {total} s, more than {MAX_SECONDS} s")
    width, height = round(_COLUMNS * _CHARACTER + 2 * _MARGIN), _BAR + _ROWS * _LINE + _MARGIN
    styles, blocks, start = [], [], 0.0
    for number, scene in enumerate(played):
        still = " still" if number == 3 else ""
        end = start + scene.seconds
        styles.append(_typed(f"c{number}", start, end, total, len(scene.command)))
        styles.append(_shown(f"o{number}", start + _OUTPUT_AFTER, end, total))
        blocks.append(_block(f"c{number}", still, [f"$ {scene.command}"], 0, "command"))
        blocks.append(_block(f"o{number}", still, _lines(scene.output), 1, "output"))
        start = end
    return _PAGE.format(
        width=width, height=height, seconds=f"{total:g}", styles="\n".join(styles), blocks="\n".join(blocks)
    )


def _lines(output: str) -> list[str]:
    lines = []
    for line in output.splitlines():
        lines += textwrap.wrap(line, _COLUMNS, break_on_hyphens=False) if len(line) > _COLUMNS else [line]
    if len(lines) >= _ROWS:
        raise ValueError(f"{len(lines)} lines of output do not fit into {_ROWS} rows: {output}")
    return lines


def _typed(name: str, start: float, end: float, total: float, letters: int) -> str:
    typed = start + _TYPING_SECONDS
    hidden, step = "clip-path:inset(0 100% 0 0)", f"animation-timing-function:steps({letters},end)"
    return (
        f"@keyframes {name}{{0%{{opacity:0}}{_at(start, total)}{{opacity:1;{hidden};{step}}}"
        f"{_at(typed, total)}{{opacity:1;clip-path:inset(0)}}{_at(end, total)}{{opacity:0}}}}"
    )


def _shown(name: str, start: float, end: float, total: float) -> str:
    return f"@keyframes {name}{{0%{{opacity:0}}{_at(start, total)}{{opacity:1}}{_at(end, total)}{{opacity:0}}}}"


def _at(seconds: float, total: float) -> str:
    return f"{100 * seconds / total:.2f}%"


def _block(name: str, still: str, lines: Sequence[str], row: int, style: str) -> str:
    rows = "".join(
        f'<text x="{_MARGIN}" y="{_BAR + (row + number + 1) * _LINE}">{escape(line)}</text>'
        for number, line in enumerate(lines)
        if line.strip()
    )
    return f'<g class="block {style}{still}" style="animation-name:{name}">{rows}</g>'


_PAGE = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">
<title>A JobSet gets two TPU node pools, runs, and the pools are deleted; another one waits for capacity.</title>
<style>
text{{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre}}
.command{{fill:#7ee787}}
.output{{fill:#e6edf3}}
.block{{opacity:0;animation-duration:{seconds}s;animation-timing-function:step-end;animation-iteration-count:infinite}}
.still{{opacity:1}}
@media (prefers-reduced-motion:reduce){{.block{{animation:none!important}}}}
{styles}
</style>
<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>
<circle cx="18" cy="14" r="5" fill="#ff5f56"/>
<circle cx="36" cy="14" r="5" fill="#ffbd2e"/>
<circle cx="54" cy="14" r="5" fill="#27c93f"/>
{blocks}
</svg>
"""


def _main() -> int:
    FILE.write_text(draw(list(scenes())), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
