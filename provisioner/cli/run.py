"""`tpu-provisioner run`: runs the controller in the foreground. Accepts the Go provisioner's flags (`-flag=value`)."""

import os
import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace

import click
import structlog

from provisioner import settings
from provisioner.cli.frame import Command, kubeconfig_option, observation_options, read_by, truth_option
from provisioner.cli.start import inferred_words, prepare
from provisioner.controller.process import Addresses
from provisioner.runtime import logs
from provisioner.runtime.http import ServerError, parse_address
from provisioner.slices import app
from provisioner.slices.preflight import checking

_log = structlog.get_logger(__name__)

_ZAP_LEVELS = {"debug": "debug", "info": "info", "warn": "warning", "error": "error", "panic": "error"}
#: Help of the flags that have no effect; docs/settings.md does not list these flags.
NO_EFFECT = "accepted, but without effect"
_CHECKS_SECONDS = 3.0


class _GoCommand(Command):
    """Accepts flags with one dash as well as with two."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [re.sub(r"^-(?=[^-].)", "--", arg) for arg in args])


def _level(text: str) -> str:
    level = "debug" if text.isdigit() and int(text) > 0 else _ZAP_LEVELS.get(text)
    if level is None:
        raise ValueError(f"is not one of {', '.join(_ZAP_LEVELS)}, or a number")
    return level


@click.command(
    cls=_GoCommand,
    examples=(
        "{prog} run                                  # in the foreground",
        "{prog} run --leader-elect --kubeconfig=FILE",
    ),
)
@observation_options(metrics=":8080")
@truth_option("--leader-elect", "elect one leader among several replicas, by a Lease")
@kubeconfig_option
@truth_option("--zap-devel", "log at level debug")
@click.option("--zap-encoder", type=click.Choice(["json", "console"]), help="json: write JSON on a terminal too")
@click.option(
    "--zap-log-level", callback=read_by(_level), help="debug, info, warn, error, or a number above 0 for debug"
)
@click.option("--zap-stacktrace-level", help=NO_EFFECT)
@click.option("--zap-time-encoding", help=NO_EFFECT)
def command(
    metrics_bind_address: str,
    health_probe_bind_address: str,
    *,
    leader_elect: bool,
    kubeconfig: str | None,
    zap_devel: bool,
    zap_encoder: str | None,
    zap_log_level: str | None,
    **without_effect: str | None,
) -> int:
    """Run the controller.

    Its settings come from the environment; see docs/settings.md. Flags that begin
    with zap are those of the Go provisioner's logger.
    """
    addresses = Addresses(metrics=metrics_bind_address, probes=health_probe_bind_address, leader_elect=leader_elect)
    effective, api, tried = prepare(kubeconfig, os.environ, problems=_problems((addresses.metrics, addresses.probes)))
    if level := zap_log_level or ("debug" if zap_devel else ""):
        effective = replace(effective, log_level=level)
    logs.configure(effective.log_level, force_json=zap_encoder == "json")
    for name, value in without_effect.items():
        if value is not None:
            _log.warning("flag.ignored", remark=f"--{name.replace('_', '-')} has no effect here")
    _log.info("settings.read", **settings.readable(effective))
    for sentence in inferred_words(tried.inferred):
        _log.info("settings.inferred", words=sentence)
    for warning in (*settings.warnings_about_environment(os.environ), *settings.warnings_about(effective)):
        _log.warning("settings.warning", warning=warning)
    log_checks(checking.Subject(settings=effective, api=api, gke=tried.gke))
    return app.run(effective, addresses, api, tried.gke)


def log_checks(subject: checking.Subject) -> None:
    """Run the checks of the installation, and log problems. After 3 s, they continue in the background."""
    thread = threading.Thread(target=checking.log_findings, args=(subject,), name="checks", daemon=True)
    thread.start()
    thread.join(_CHECKS_SECONDS)


def _problems(addresses: Iterable[str]) -> Iterator[str]:
    for address in addresses:
        try:
            parse_address(address)
        except ServerError as error:
            yield str(error)
