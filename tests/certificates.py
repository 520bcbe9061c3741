"""Certificates for the tests: each is its own CA, and lasts an hour."""

from __future__ import annotations

import datetime as dt
import ipaddress
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Certificate(NamedTuple):
    """In PEM."""

    certificate: bytes
    key: bytes


def new_certificate(*names: x509.GeneralName) -> Certificate:
    """A certificate for the loopback address, or for ``names``."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName(names or [loopback]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, none = serialization.Encoding.PEM, serialization.NoEncryption()
    return Certificate(certificate.public_bytes(pem), key.private_bytes(pem, serialization.PrivateFormat.PKCS8, none))
