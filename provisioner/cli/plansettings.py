"""Settings for a plan: from a file or the environment, with placeholders for what a plan can do without."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from provisioner import settings
from provisioner.cli.manifests import read_documents
from provisioner.cli.remote import Remote
from provisioner.settings import Settings
from provisioner.slices.offline.assumed import CHANNEL, assumed
from provisioner.slices.offline.documents import Document


class PlanSettings(NamedTuple):
    """The settings of a plan."""

    settings: Settings
    #: What was assumed, and settings that do not do what somebody thinks.
    remarks: tuple[str, ...]


def read_plan_settings(name: str | None, live: Remote | None, documents: Iterable[Document]) -> PlanSettings:
    """Read settings from a file, from the controller that runs, or from the environment.

    The region is that of the manifests where no setting says it. Raises SettingsError, RemoteError, and OSError where
    the file cannot be read.
    """
    warnings: tuple[str, ...] = ()
    if name:
        variables, warnings = _read_settings_file(name)
    elif live is not None:
        # HTTP takes a tenth of the time of `plan` to import.
        from provisioner.cli.asking import settings as settings_of  # noqa: PLC0415

        variables = settings_of(live)
    else:
        variables = dict(os.environ)
    effective = _settings_of(variables, documents)
    return effective._replace(remarks=(*warnings, *effective.remarks))


def _settings_of(variables: Mapping[str, str], documents: Iterable[Document]) -> PlanSettings:
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
