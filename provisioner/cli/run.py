"""`tpu-provisioner run`: the controller in the foreground.

Flags are those of the Go provisioner, in all forms that Go takes: one dash or two, `-flag=value` or `-flag value`.
"""

from __future__ import annotations

import argparse
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from provisioner import settings
from provisioner.cli.output import refuse
from provisioner.cli.start import inferred_words, prepare, subject_of
from provisioner.controller import Addresses
from provisioner.runtime import logs
from provisioner.runtime.http import ServerError, parse_address
from provisioner.slices import app, preflight

_log = structlog.get_logger(__name__)

#: Flags of the Go provisioner's logger; what they asked for, where it has a counterpart.
_ZAP_LEVELS = {"debug": "debug", "info": "info", "warn": "warning", "error": "error", "panic": "error"}
#: The checks hold up the start for no longer than this.
_CHECKS_SECONDS = 3.0
_EXAMPLES = """examples:
  {prog} run                                  # in the foreground
  {prog} run --leader-elect --kubeconfig=FILE
"""
_ZAP_IGNORED = ("zap-stacktrace-level", "zap-time-encoding")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What the command line says."""

    metrics_address: str
    probe_address: str
    leader_elect: bool
    kubeconfig: str | None
    #: None where the flags do not say.
    log_level: str | None
    json_logs: bool
    #: Words about flags that have no effect.
    remarks: tuple[str, ...] = ()


def main(arguments: Sequence[str], *, program: str = "tpu-provisioner") -> int:
    """Run the controller; return the exit code."""
    flags = parse_flags(arguments, program=program)
    try:
        start = prepare(flags.kubeconfig, os.environ, problems=_wrong_addresses(flags))
    except settings.SettingsError as error:
        return refuse(str(error))
    effective = start.settings
    if flags.log_level is not None:
        effective = replace(effective, log_level=flags.log_level)
    logs.configure(effective.log_level, force_json=flags.json_logs)
    for remark in flags.remarks:
        _log.warning("flag.ignored", remark=remark)
    _log.info("settings.read", **_readable(effective))
    for words in inferred_words(start.inferred):
        _log.info("settings.inferred", words=words)
    for warning in (*settings.warnings_about_environment(os.environ), *settings.warnings_about(effective)):
        _log.warning("settings.warning", warning=warning)
    addresses = Addresses(metrics=flags.metrics_address, probes=flags.probe_address, leader_elect=flags.leader_elect)
    log_checks(subject_of(start, effective))
    try:
        return app.run(effective, addresses, start.api, start.gke)
    except ServerError as error:
        return refuse(str(error))


def log_checks(subject: preflight.Subject) -> None:
    """Log what `tpu-provisioner check` would say; what takes long goes on beside the controller."""
    thread = threading.Thread(target=preflight.log_findings, args=(subject,), name="checks", daemon=True)
    thread.start()
    thread.join(_CHECKS_SECONDS)


def _wrong_addresses(flags: Flags) -> list[str]:
    problems = []
    for address in (flags.metrics_address, flags.probe_address):
        try:
            parse_address(address)
        except ServerError as error:
            problems.append(str(error))
    return problems


def parse_flags(arguments: Sequence[str], *, program: str = "tpu-provisioner") -> Flags:
    """Read the flags; exits with a usage message where they are wrong, as argparse does."""
    parser = argparse.ArgumentParser(
        prog=f"{program} run",
        description="Run the controller. Its settings come from the environment; see docs/settings.md.",
        epilog=_EXAMPLES.format(prog=program),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--metrics-bind-address", default=":8080", help='address of /metrics; "0" disables it')
    parser.add_argument(
        "--health-probe-bind-address", default=":8081", help='address of /healthz and /readyz; "0" disables it'
    )
    _boolean(parser, "--leader-elect", "elect one leader among several replicas, by a Lease")
    parser.add_argument(
        "--kubeconfig", help="kubeconfig file (default: in-cluster, else $KUBECONFIG, else ~/.kube/config)"
    )
    zap = parser.add_argument_group("flags of the Go provisioner's logger")
    _boolean(zap, "--zap-devel", "log at level debug")
    zap.add_argument("--zap-encoder", choices=("json", "console"), help="json: write JSON on a terminal too")
    zap.add_argument("--zap-log-level", help="debug, info, warn, error, or a number above 0 for debug")
    for name in _ZAP_IGNORED:
        zap.add_argument(f"--{name}", help="accepted, but without effect")
    given = parser.parse_args([_two_dashes(argument) for argument in arguments])
    level = "debug" if given.zap_devel else None
    if given.zap_log_level is not None:
        text = given.zap_log_level
        level = "debug" if text.isdigit() and int(text) > 0 else _ZAP_LEVELS.get(text)
        if level is None:
            parser.error(f"argument --zap-log-level: {text!r} is not one of {', '.join(_ZAP_LEVELS)}, or a number")
    ignored = (name for name in _ZAP_IGNORED if getattr(given, name.replace("-", "_")) is not None)
    return Flags(
        metrics_address=given.metrics_bind_address,
        probe_address=given.health_probe_bind_address,
        leader_elect=given.leader_elect,
        kubeconfig=given.kubeconfig,
        log_level=level,
        json_logs=given.zap_encoder == "json",
        remarks=tuple(f"--{name} has no effect here" for name in ignored),
    )


def _boolean(parser: argparse._ActionsContainer, name: str, text: str) -> None:
    parser.add_argument(name, nargs="?", const=True, default=False, type=_bool, metavar="BOOL", help=text)


def _bool(text: str) -> bool:
    try:
        return settings.go_bool(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from error


def _two_dashes(argument: str) -> str:
    return f"-{argument}" if len(argument) > 2 and argument[0] == "-" and argument[1] != "-" else argument


def _readable(effective: settings.Settings) -> dict[str, object]:
    defaults = {each.field: each.default for each in settings.OPTIONS}
    values = ((each.variable, each.field, getattr(effective, each.field)) for each in settings.OPTIONS)
    return {
        variable: _plain_value(field, value)
        for variable, field, value in values
        # An empty list that is no default ("none") says much.
        if value not in ("", None) and not (value == () and defaults[field] == "")
    }


def _plain_value(field: str, value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return f"{value:g}s" if field.endswith("_seconds") else value


def _plain(item: object) -> str:
    return f"{item[0]}={item[1]}" if isinstance(item, tuple) else str(item)
