"""The address of the MQTT broker, authentication, and what a failed connection means.

A refusal is a failure that retrying does not fix: a wrong password, a certificate that is not trusted. All other failures
(connection refused, a name that can't be resolved just now, a broker that is not ready) may be temporary.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from seriatim.errors import FailedPrecondition, InvalidArgument, PermissionDenied, SeriatimError, Unauthenticated
from seriatim.extras import require_extra

require_extra("mqtt", "aiomqtt", "paho.mqtt", what="the Sparkplug host")

import aiomqtt  # noqa: E402

_BAD_CREDENTIALS, _NOT_AUTHORIZED = 134, 135
"""The reason codes of MQTT 5, to which the client library maps the return codes 4 and 5 of MQTT 3.1.1."""
_MISREAD = frozenset("#?\t\r\n")
"""Characters that would truncate the address or be ignored; they can only be meant as part of user or password."""


@dataclass(frozen=True, slots=True)
class MqttAddress:
    """The address of the MQTT broker, with our credentials. The password is never shown."""

    host: str
    port: int
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str, password: str | None = None) -> MqttAddress:
        """Parse ``mqtt://[user[:password]@]host[:port]``, or ``mqtts://`` for TLS. A password in it takes precedence."""
        try:
            parts = urlsplit(url)
            port = parts.port
            user, said = (part and unquote(part, errors="strict") for part in (parts.username, parts.password))
        except ValueError:
            raise _no_address() from None  # its text would reveal user and password
        is_whole = parts.path in ("", "/") and not _MISREAD & set(url)
        if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname or port == 0 or not is_whole:
            raise _no_address()
        tls = parts.scheme == "mqtts"
        given = (said or password) if user is not None else None  # no password without a user
        return cls(parts.hostname, port or (8883 if tls else 1883), tls, user, given)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.tls else 'mqtt'}://{host}:{self.port}"


def _no_address() -> InvalidArgument:
    return InvalidArgument(
        "an MQTT broker is given as mqtt://host:1883, or mqtts://host:8883 for TLS; in user and password write every "
        "character but letters and digits percent-encoded: # is %23"
    )


@dataclass(frozen=True, slots=True)
class MqttTrust:
    """PEM files: the CAs that we trust instead of the system's, and our certificate for the broker."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def context(self) -> ssl.SSLContext:
        """The TLS context. InvalidArgument if a file can't be used."""
        context = ssl.create_default_context()
        try:
            if self.ca is not None:
                context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except OSError as error:  # errors of ssl are OSErrors, too
            raise InvalidArgument(f"the certificates for the MQTT broker can't be read as PEM: {error}") from error
        return context

    def for_address(self, address: MqttAddress) -> ssl.SSLContext | None:
        """The TLS context for a broker; None without TLS."""
        if self.key is not None and self.certificate is None:
            raise InvalidArgument("a key for the MQTT broker needs the certificate that belongs to it")
        if not address.tls and (self.ca or self.certificate):
            raise InvalidArgument("certificates need TLS: give the address of the broker as mqtts://")
        return self.context() if address.tls else None


def _no_password() -> str:
    raise InvalidArgument(
        "the key for the MQTT broker is encrypted: give one that is not, in a file that only you can read"
    )


class SubscriptionRefused(aiomqtt.MqttError):
    """The broker refused a subscription, which the client library does not report."""


def refusal_of(error: aiomqtt.MqttError, address: MqttAddress) -> SeriatimError | None:
    """The error to raise if a connection failed for a reason that retrying does not fix, otherwise None."""
    code = getattr(error.rc, "value", None) if isinstance(error, aiomqtt.MqttCodeError) else None
    if code in (_BAD_CREDENTIALS, _NOT_AUTHORIZED):
        who = "refuses anonymous connections" if address.user is None else f"refuses user {address.user!r}"
        return Unauthenticated(f"the MQTT broker {address} {who}: check user and password")
    if isinstance(error, SubscriptionRefused):
        return PermissionDenied(f"the MQTT broker {address} {error}: check what this user may read")
    untrusted = error.__context__  # the client library wraps it
    if isinstance(untrusted, ssl.SSLCertVerificationError):
        return FailedPrecondition(
            f"the certificate of the MQTT broker {address} is not trusted ({untrusted.verify_message}): "
            "name the CA that signed it, and the broker as its certificate does"
        )
    return None
