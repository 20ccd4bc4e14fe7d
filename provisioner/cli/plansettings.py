"""Settings for a plan: from a file or the environment, with placeholders for what a plan can do without."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from provisioner import settings
from provisioner.cli.frame import complete_files
from provisioner.cli.manifests import read_documents
from provisioner.cli.remote import Remote, remote_options
from provisioner.settings import Settings
from provisioner.slices.offline.assumed import CHANNEL, assumed
from provisioner.slices.offline.documents import Document

_Function = TypeVar("_Function", bound=Callable[..., Any])


class PlanSettings(NamedTuple):
    """The settings of a plan."""

    settings: Settings
    #: What was assumed, and settings that do not do what somebody thinks.
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsSource:
    """Where the settings of a plan come from."""

    #: The file that has them; None: the environment, or the controller.
    file: str | None
    #: Whether the controller that runs is asked.
    live: bool
    remote: Remote

    def read(self, documents: Iterable[Document]) -> PlanSettings:
        """Read them; the region is that of the manifests where no setting says it.

        Raises SettingsError, RemoteError, and OSError where the file cannot be read.
        """
        warnings: tuple[str, ...] = ()
        if self.file:
            variables, warnings = _read_settings_file(self.file)
        else:
            variables = dict(os.environ)
            if self.live:
                # HTTP takes a tenth of the time of `plan` to import.
                from provisioner.cli.asking import settings as settings_of  # noqa: PLC0415

                variables = settings_of(self.remote)
        effective = _read_plan_settings(variables, documents)
        return effective._replace(remarks=(*warnings, *effective.remarks))


def settings_options(command: _Function) -> _Function:
    """Add the options that say which settings a command goes by; it gets them as `source`."""

    @functools.wraps(command)
    def wrapped(*arguments: Any, settings_file: str | None, live: bool, remote: Remote, **options: Any) -> Any:
        if live and settings_file:
            raise click.UsageError("--live and --settings exclude each other")
        source = SettingsSource(file=settings_file, live=live, remote=remote)
        return command(*arguments, source=source, **options)

    file_option = click.option(
        "--settings",
        "settings_file",
        metavar="FILE",
        shell_complete=complete_files,
        help="settings.env of an overlay, or a ConfigMap (default: the environment)",
    )
    live_option = click.option("--live", is_flag=True, help="use the settings of the running controller")
    return file_option(live_option(remote_options(wrapped)))  # type: ignore[return-value]


def _read_plan_settings(variables: Mapping[str, str], documents: Iterable[Document]) -> PlanSettings:
    missing = assumed(variables, documents)
    effective = settings.read_settings(variables, inferred=missing)
    remarks = []
    if missing:
        are = "are" if len(missing) > 1 else "is"
        remarks.append(f"{_listed(missing.keys())} {are} not set; this plan uses {_listed(missing.values())}.")
    if effective.on_gce:
        remarks.append(
            "Pods are assumed to tolerate google.com/tpu: without GKE they have to say so, or the API server needs the "
            "admission plugin ExtendedResourceToleration."
        )
    elif effective.auto_upgrade is None:
        effective = effective.on_channel(CHANNEL)
        remarks.append("NODEPOOL_AUTO_UPGRADE is auto; this plan is for a cluster on a release channel.")
    if effective.pause_creation:
        remarks.append("PAUSE_CREATION is set: nothing is created until it is unset.")
    return PlanSettings(settings=effective, remarks=tuple(remarks))


def _listed(words: Iterable[str]) -> str:
    *some, last = words
    return f"{', '.join(some)} and {last}" if some else last


def _read_settings_file(name: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Read a file of settings as the kustomize overlay has it, or a ConfigMap; and warnings about what it sets.

    Raises SettingsError with the lines that cannot be read, OSError where the file cannot be.
    """
    try:
        text = Path(name).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise settings.SettingsError([f"{name} is not UTF-8"]) from error
    found = _of_config_map(name, text) if re.search(r"^kind:|\"kind\"", text, re.MULTILINE) else _of_lines(name, text)
    return found, settings.warnings_about_environment(found)


def _of_lines(name: str, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    problems = []
    for number, line in enumerate(text.splitlines(), start=1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        key, separator, value = bare.partition("=")
        if not separator or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", key):
            problems.append(f"{name}:{number} is not of the form NAME=value")
        found[key] = value
    if problems:
        raise settings.SettingsError(problems)
    return found


def _of_config_map(name: str, text: str) -> dict[str, str]:
    documents, problems = read_documents(name, text)
    maps = [each for each in documents if each.raw.get("kind") == "ConfigMap"]
    data = maps[0].raw.get("data") if len(maps) == 1 else None
    if problems or not isinstance(data, dict):
        raise settings.SettingsError([*map(str, problems)] or [f"{name} is not one ConfigMap with data"])
    return {key: value for key, value in data.items() if isinstance(value, str)}
