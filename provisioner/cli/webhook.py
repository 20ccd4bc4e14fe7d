"""`tpu-provisioner webhook`: runs the admission webhook server. Accepts gke-tpu-env-injector's flags and variables."""

import os
from pathlib import Path

import click

from provisioner.admission.files import Files
from provisioner.cli.frame import command_with, file_option, kubeconfig_option, observation_options, truth_option
from provisioner.kube.api import connect
from provisioner.runtime import logs
from provisioner.settings.webhook import read_webhook_settings
from provisioner.webhook import app

#: Default paths of gke-tpu-env-injector's certificate and key.
_CERTIFICATE, _KEY = "/etc/tls/tls.crt", "/etc/tls/tls.key"


_SHOWN = {"show_default": True, "show_envvar": True}


@command_with("{prog} webhook", "{prog} webhook --tls-cert-file=tls.crt --tls-key-file=tls.key")
@click.option("--bind-address", default=":8443", show_default=True, help="address of the webhooks, over HTTPS")
@observation_options(metrics=":8080")
@file_option(
    "--tls-cert-file",
    "certificate; read again when it changes",
    envvar="GTEI_TLS_CERT_FILE",
    default=_CERTIFICATE,
    **_SHOWN,
)
@file_option("--tls-key-file", "its key", envvar="GTEI_TLS_KEY_FILE", default=_KEY, **_SHOWN)
@truth_option("--verbose", "log at level debug", envvar="GTEI_VERBOSE", show_envvar=True)
@kubeconfig_option
def command(
    bind_address: str,
    metrics_bind_address: str,
    health_probe_bind_address: str,
    tls_cert_file: str,
    tls_key_file: str,
    verbose: bool,  # noqa: FBT001 - click hands over by name
    kubeconfig: str | None,
) -> int:
    """Serve admission webhooks, which the API server asks about objects before it stores them.

    They give pods their TPU variables, report mistakes in workloads that can
    get no slice, and on request change the selectors of Jobs.

    Without certificate files the server makes its own certificates and lets its webhook configurations trust them.
    Other settings come from the environment; see docs/webhook.md.
    """
    context = click.get_current_context()
    given = any(
        context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
        for name in ("tls_cert_file", "tls_key_file")
    )
    certificate, key = Path(tls_cert_file), Path(tls_key_file)
    files = Files(certificate=certificate, key=key) if given or certificate.exists() else None
    effective = read_webhook_settings(os.environ)
    api = connect(kubeconfig)
    logs.configure("debug" if verbose else effective.log_level)
    addresses = app.Addresses(webhooks=bind_address, metrics=metrics_bind_address, probes=health_probe_bind_address)
    return app.run(effective, addresses, api, files, os.environ)
