"""`tpu-provisioner check`: tests whether `run` would work with these settings, kubeconfig and credentials."""

import os
import sys
from collections.abc import Iterator, Mapping

from provisioner import settings
from provisioner.cli import output
from provisioner.cli.frame import FORMATS, command_with, format_option, kubeconfig_option
from provisioner.cli.output import ExitCode
from provisioner.cli.start import Attempt, attempt, in_cluster
from provisioner.runtime import logs
from provisioner.slices import preflight
from provisioner.slices.preflight import Finding, Status
from provisioner.slices.preflight.checking import Subject, run_checks

_SETTINGS, _KUBECONFIG, _CREDENTIALS = "settings", "kubeconfig", "credentials for GKE"


@command_with(
    "{prog} check            # with the settings of the environment",
    "{prog} check -o json    # for programs",
)
@kubeconfig_option
@format_option("text")
def command(kubeconfig: str | None, form: str | None) -> int:
    """Check whether `run` would work here, and say what to do; changes nothing.

    Exit code 1 when a check failed. A check without a result is a warning.
    """
    # Only unexpected errors are logged, because findings are printed.
    logs.configure("error", stream=sys.stderr)
    findings, width = [], output.terminal_width()
    for finding in all_findings(attempt(kubeconfig, os.environ), os.environ):
        findings.append(finding)
        if form not in FORMATS:
            # Further lines of a finding begin below its text, after the 9 columns of the status.
            output.show("\n".join(output.wrapped(str(finding), width, indent=" " * 9)))
    if form in FORMATS:
        output.write({"checks": findings}, form)
    return ExitCode.ERROR if any(finding.status is Status.FAILED for finding in findings) else ExitCode.OK


def all_findings(tried: Attempt, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield findings about settings, kubeconfig and missing credentials, then of `run_checks` if settings are valid."""
    yield _judge_settings(tried, environment).of(_SETTINGS)
    if tried.api is None:
        yield preflight.failed(tried.kubeconfig_problem).of(_KUBECONFIG)
    else:
        yield preflight.ok(f"context {tried.api.context_name}").of(_KUBECONFIG)
    if tried.credentials_problem:
        yield preflight.failed(tried.credentials_problem).of(_CREDENTIALS)
    if tried.settings is not None:
        yield from run_checks(Subject(settings=tried.settings, api=tried.api, gke=tried.gke))


def _judge_settings(tried: Attempt, environment: Mapping[str, str]) -> Finding:
    if tried.settings is None:
        return preflight.failed(
            " ".join(tried.settings_problems), f"See docs/settings.md for all settings. {in_cluster('check')}"
        )
    effective = tried.settings
    place = f"{effective.cluster_name}, zone {effective.zone}"
    if warnings := (*settings.warnings_about_environment(environment), *settings.warnings_about(effective)):
        return preflight.warning(f"{place}.", " ".join(warnings))
    return preflight.ok(place)
