"""`tpu-provisioner check`: whether `run` would work with these settings, this kubeconfig and these credentials.

It changes nothing, and prints one line a check as soon as it is made.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping

from provisioner import settings
from provisioner.cli import output
from provisioner.cli.start import Attempt, attempt, subject_of
from provisioner.runtime import logs
from provisioner.slices import preflight
from provisioner.slices.preflight import Finding, Status

_SETTINGS, _KUBECONFIG, _CREDENTIALS = "settings", "kubeconfig", "credentials for GKE"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--kubeconfig", help="kubeconfig file (default: in-cluster, else $KUBECONFIG, else ~/.kube/config)"
    )
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="output format (default: text)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Make all checks; return 1 when one failed, or not all could be told, else 0."""
    # What it finds it prints; the log is for what nobody expects.
    logs.configure("error", stream=sys.stderr)
    output.never_refuse_a_letter()
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        output.drop_the_rest()
        return 1


def _run(arguments: argparse.Namespace) -> int:
    found = []
    for finding in all_findings(attempt(arguments.kubeconfig, os.environ), os.environ):
        found.append(finding)
        if arguments.output == "text":
            print(finding, flush=True)
    if arguments.output == "json":
        print(json.dumps({"checks": [as_json(finding) for finding in found]}, indent=2), flush=True)
    return int(any(finding.status is Status.FAILED for finding in found))


def all_findings(tried: Attempt, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Judge the start, then check whatever there is of it."""
    yield _judge_settings(tried, environment)
    if tried.api is None:
        yield preflight.failed(_KUBECONFIG, tried.kubeconfig_problem)
    else:
        yield preflight.ok(_KUBECONFIG, f"context {tried.api.context_name}")
    if tried.credentials_problem:
        yield preflight.failed(_CREDENTIALS, tried.credentials_problem)
    if tried.settings is not None:
        yield from preflight.run_checks(subject_of(tried, tried.settings))


def as_json(finding: Finding) -> dict[str, str]:
    """Return a finding as JSON has it."""
    return {
        "name": finding.name,
        "status": finding.status.value,
        "message": finding.message,
        "advice": finding.advice,
    }


def _judge_settings(tried: Attempt, environment: Mapping[str, str]) -> Finding:
    if tried.settings is None:
        return preflight.failed(_SETTINGS, " ".join(tried.settings_problems), "See docs/settings.md for all settings.")
    effective = tried.settings
    place = f"{effective.project_id}/{effective.cluster_location}/{effective.cluster}, zone {effective.zone}"
    if warnings := (*settings.warnings_about_environment(environment), *settings.warnings_about(effective)):
        return preflight.warning(_SETTINGS, f"{place}.", " ".join(warnings))
    return preflight.ok(_SETTINGS, place)
