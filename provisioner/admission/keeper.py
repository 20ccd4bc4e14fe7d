"""Maintains the webhook server's own certificates in a Secret for all replicas. Keys of authorities are not stored."""

import base64
import os
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import structlog
from cryptography import x509

from provisioner.admission import rotation
from provisioner.admission.files import server_context
from provisioner.admission.rotation import Keys, KeysError
from provisioner.kube import errors, fields
from provisioner.kube.protocol import Api, JsonObject, Timeouts, object_path
from provisioner.runtime.authority import Authority

_log = structlog.get_logger(__name__)

_ROOT = "/apis/admissionregistration.k8s.io/v1"
_CONFIGURATION_KINDS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
#: Maximum number of attempts of one step, if other clients change the Secret or the webhooks at the same time.
_ATTEMPTS = 3
_TIMEOUTS = Timeouts(connect_seconds=3.0, read_seconds=5.0)


def make_keys(names: Sequence[str], *, now: datetime, valid: timedelta) -> Keys:
    """Create an authority and a serving certificate for DNS names; the authority's key is dropped."""
    authority = Authority("tpu-provisioner webhook", now=now, valid=valid)
    # A common name has at most 64 characters. It may be cut, because verifiers read only the alternative names.
    serving = authority.server(names[0][:64], names=names)
    return Keys(
        certificate_pem=serving.certificate_pem.decode(),
        key_pem=serving.key_pem.decode(),
        authority_pem=authority.certificate_pem.decode(),
    )


def valid_until(keys: Keys, names: Sequence[str], *, now: datetime) -> datetime:
    """Return the end of the keys' validity for the names. Raises KeysError if they are not valid now."""
    try:
        certificate = x509.load_pem_x509_certificate(keys.certificate_pem.encode())
        authority = x509.load_pem_x509_certificate(keys.authority_pem.encode())
        certificate.verify_directly_issued_by(authority)
        served = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        since, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        until = min(until, authority.not_valid_after_utc)
    except Exception as error:
        # Any exception is possible: a user may have written anything into the Secret.
        raise KeysError(f"the certificate cannot be read: {error!r}") from error
    load(server_context(), keys)
    missing = set(names) - set(served.value.get_values_for_type(x509.DNSName))
    if missing:
        raise KeysError(f"the certificate is not for {', '.join(sorted(missing))}")
    if not since <= now < until:
        raise KeysError(f"the certificate is valid from {since} to {until}")
    return until


def are_certificates(pem: str) -> bool:
    """Return whether a text contains certificates, and all of them are readable."""
    try:
        return bool(x509.load_pem_x509_certificates(pem.encode()))
    except (ValueError, x509.InvalidVersion):
        return False


def load(context: ssl.SSLContext, keys: Keys) -> None:
    """Serve these keys on new connections. Raises KeysError if they cannot be used."""
    # Python's `ssl` reads keys only from files. These files are in memory, so that no key is written to a disk.
    with _in_memory(keys.certificate_pem) as certificate, _in_memory(keys.key_pem) as key:
        try:
            context.load_cert_chain(certificate, key)
        except ssl.SSLError as error:
            raise KeysError(f"certificate and key cannot be used: {error}") from error


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    descriptor = os.memfd_create("pem")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


@dataclass(slots=True, kw_only=True)
class Keeper:
    """Creates, shares and rotates keys, and serves the current keys. One thread at a time calls `step`."""

    api: Api
    namespace: str
    secret: str
    #: DNS names under which API servers reach this server.
    names: Sequence[str]
    #: Name of the MutatingWebhookConfiguration and the ValidatingWebhookConfiguration with this server's webhooks.
    configuration: str
    context: ssl.SSLContext
    now: Callable[[], datetime]
    problem: str = "no certificate is served yet"
    _served: Keys | None = field(default=None, init=False)
    #: End of validity of the served certificate; cached for /readyz, because determining it takes a millisecond.
    _until: datetime | None = field(default=None, init=False)
    _state: rotation.State = field(default_factory=rotation.State, init=False)
    _looked: datetime | None = field(default=None, init=False)
    #: CA bundle that all webhooks of a configuration were last known to trust, by kind.
    _announced: dict[str, str] = field(default_factory=dict, init=False)

    @property
    def serving(self) -> bool:
        """Whether the served certificate is valid, and cannot have been rotated since the last read of the Secret."""
        if self._until is None or self._looked is None:
            return False
        return not rotation.is_dated(self._state, self._looked, self.now(), until=self._until)

    def step(self) -> None:
        """Do the work that is due. Failures are reported in `problem` and retried in the next step."""
        try:
            self.problem = self._keep()
        except errors.ClusterError as error:
            self.problem = f"the webhook's certificates cannot be maintained: {error}"
        except (KeysError, OSError) as error:
            self.problem = f"the webhook's certificate cannot be served: {error}"

    def _keep(self) -> str:
        for _ in range(_ATTEMPTS):
            # If another client wrote the Secret or the webhooks in between, read both again.
            with suppress(errors.Conflict):
                return self._keep_once()
        raise errors.Conflict(f"Secret {self.namespace}/{self.secret} or the webhooks change all the time")

    def _keep_once(self) -> str:
        """Update Secret and webhooks, and serve the keys of the Secret; return the problem, empty if none."""
        # Read the webhooks first: if another replica then replaces the CA bundle, the patch is rejected as outdated.
        configurations, forbidden = self._configurations()
        stored = self._get(self._secret_path())
        self._looked = self.now()
        data = fields.at(stored, "data")
        before = self._state = rotation.read_state({key: fields.base64_text(value) for key, value in data.items()})
        if self._served is None:
            # Serve valid keys of the Secret after a restart, even if the Secret cannot be written.
            self._serve(before)
        state = rotation.advance(
            before,
            self.now(),
            make=lambda: make_keys(self.names, now=self.now(), valid=rotation.VALID),
            valid_until=self._valid_until,
            announced=not forbidden and _is_announced(rotation.trusted(before), configurations.values()),
            served=self._served,
        )
        if not are_certificates(state.earlier):
            # Earlier authorities that are unreadable are dropped, because API servers would reject the whole bundle.
            state = replace(state, earlier="")
        if state != before:
            self._write(stored, state)
            _log.info("webhook_certificates.advanced", rotating=state.next is not None)
        self._state = state
        try:
            missing = self._announce(rotation.trusted(state), configurations)
        finally:
            # Serve the keys when the webhooks trust them, or when the attempt to make the webhooks trust them failed.
            self._serve(state)
        return forbidden or missing

    def _serve(self, state: rotation.State) -> None:
        keys = rotation.usable(state.present, self._valid_until)
        if keys is None or keys == self._served:
            return
        load(self.context, keys)
        self._served, self._until = keys, self._valid_until(keys)
        _log.info("webhook_certificates.served", valid_until=self._until.isoformat())

    def _announce(self, bundle: str, configurations: Mapping[str, JsonObject | None]) -> str:
        """Make all webhooks trust a CA bundle; return the problem, empty if at least one configuration exists."""
        for kind, configuration in configurations.items():
            if configuration is None:
                continue
            names = [name for name, trusted in _webhooks(configuration) if trusted != bundle]
            if names:
                if self._announced.get(kind) == bundle:
                    _log.warning("webhook_certificates.reset", configuration=self.configuration, webhooks=names)
                encoded = base64.b64encode(bundle.encode()).decode()
                webhooks = [{"name": name, "clientConfig": {"caBundle": encoded}} for name in names]
                version = fields.mapping(configuration.get("metadata")).get("resourceVersion")
                body = {"metadata": {"resourceVersion": version}, "webhooks": webhooks}
                self.api.patch(self._path(kind), body, strategic=True, timeouts=_TIMEOUTS)
                _log.info("webhook_certificates.announced", configuration=self.configuration, webhooks=names)
            self._announced[kind] = bundle
        # One configuration is enough, because a user may register only some of the webhooks.
        missing = all(configuration is None for configuration in configurations.values())
        titles = " or ".join(f"{kind} {self.configuration}" for kind in configurations)
        return f"{titles} does not exist; apply it" if missing else ""

    def _configurations(self) -> tuple[dict[str, JsonObject | None], str]:
        """Return the configurations by kind, None if missing, and the problem if RBAC forbids a read."""
        configurations, problem = {}, ""
        for kind in _CONFIGURATION_KINDS:
            try:
                configurations[kind] = self._get(self._path(kind))
            except errors.Forbidden as error:
                # The problem delays rotations, but a new replica must still serve the Secret's keys.
                problem = f"{kind} {self.configuration} cannot be read: {error}"
        return configurations, problem

    def _path(self, kind: str) -> str:
        return object_path(f"{kind.lower()}s", self.configuration, root=_ROOT)

    def _secret_path(self) -> str:
        return object_path("secrets", self.secret, namespace=self.namespace)

    def _get(self, path: str) -> JsonObject | None:
        try:
            return self.api.get(path, timeouts=_TIMEOUTS)
        except errors.NotFound:
            return None

    def _write(self, stored: JsonObject | None, state: rotation.State) -> None:
        data = {key: base64.b64encode(text.encode()).decode() for key, text in rotation.write_state(state).items()}
        if stored is None:
            # The manifests contain the Secret, so that the server needs no permission to create Secrets.
            title = f"Secret {self.namespace}/{self.secret}"
            raise errors.NotFound(f"{title} does not exist; apply the server's manifests again")
        body = {**stored, "data": {**fields.mapping(stored.get("data")), **data}}
        self.api.put(self._secret_path(), body, timeouts=_TIMEOUTS)

    def _valid_until(self, made: Keys) -> datetime:
        return valid_until(made, self.names, now=self.now())


def _is_announced(bundle: str, configurations: Iterable[JsonObject | None]) -> bool:
    """Return whether all registered webhooks trust a bundle. A webhook that is added later gets it in the next step."""
    wanted = set(_certificates(bundle))
    bundles = (trusted for configuration in configurations for _, trusted in _webhooks(configuration))
    return all(wanted <= set(_certificates(trusted)) for trusted in bundles)


def _webhooks(configuration: JsonObject | None) -> list[tuple[str, str]]:
    return [
        (fields.text(raw.get("name")), fields.base64_text(fields.mapping(raw.get("clientConfig")).get("caBundle")))
        for raw in fields.mappings(fields.mapping(configuration).get("webhooks"))
    ]


def _certificates(bundle: str) -> list[str]:
    end = "-----END CERTIFICATE-----"
    return [part.strip() for part in bundle.split(end) if part.strip()]
