"""Kafka's address, login, and translated errors: ``kafka://HOST:9092[,HOST2:9092]?option=value``.

Options that the address lacks are read from the environment, ``SERIATIM_KAFKA_<OPTION>``: put a password there. Errors
never repeat an address, because it may contain a password.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from confluent_kafka import KafkaError, KafkaException

from seriatim.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutcomeUnknown,
    PermissionDenied,
    ResourceExhausted,
    SeriatimError,
    StoreFailed,
    StoreLost,
    Unauthenticated,
)
from seriatim.log import logger

ENVIRONMENT = "SERIATIM_KAFKA_"
_SERVER = re.compile(r"([^\s,@/:\[\]]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?")
_SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,9})?")
_MEMBER = re.compile(r"[A-Za-z0-9._-]{1,100}")

CLIENT_OPTIONS = {
    "security": "security.protocol",
    "sasl": "sasl.mechanism",
    "username": "sasl.username",
    "password": "sasl.password",
    "ca": "ssl.ca.location",
    "certificate": "ssl.certificate.location",
    "key": "ssl.key.location",
    "key_password": "ssl.key.password",
}
"""What every client of Kafka is told, and what librdkafka calls it."""
_SECRETS = {"password", "key_password"}


@dataclass(frozen=True, slots=True)
class Address:
    """How to reach Kafka, and the options of the address.

    ``partitions`` and ``replication`` apply to topics that are created here; None leaves them to the broker.
    ``member`` makes this program a static member of its groups: it keeps its partitions over a restart.
    """

    servers: str
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    partitions: int | None = None
    replication: int | None = None
    session_timeout: float = 45.0
    max_poll_interval: float = 300.0
    isolation: str = "read_committed"
    member: str | None = None

    @classmethod
    def parse(cls, url: str, environment: Mapping[str, str] | None = None) -> Address:
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        servers = parts.netloc
        if parts.path.strip("/") or parts.fragment or not all(map(_SERVER.fullmatch, servers.split(","))):
            raise InvalidArgument(
                "this is not the address of Kafka: write kafka://HOST:9092, or kafka://HOST:9092,HOST2:9092"
            )
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := sorted(given.keys() - OPTIONS.keys()):
            # Next to a password, it may be part of that.
            named = (
                f"option {unknown[0]!r}"
                if given.keys().isdisjoint(_SECRETS)
                else "such option (& is %26 in a password)"
            )
            raise InvalidArgument(f"a kafka address has no {named}; there are {', '.join(sorted(OPTIONS))}")
        environment = os.environ if environment is None else environment
        inherited = {name: environment.get(ENVIRONMENT + name.upper()) for name in OPTIONS}
        values = {name: value for name, value in inherited.items() if value is not None} | given
        client = {CLIENT_OPTIONS[name]: values.pop(name) for name in CLIENT_OPTIONS if name in values}
        chosen: dict[str, Any] = {}
        for name, text in values.items():
            try:
                chosen[name] = OPTIONS[name](text)
            except ValueError as error:
                raise InvalidArgument(f"the option {name} of a kafka address is wrong: {error}") from None
        return cls(servers, client, **chosen)

    def config(self, **more: object) -> dict[str, Any]:
        """The configuration of one client."""
        return {"bootstrap.servers": self.servers, "log_level": 3, "logger": logger, **self.client, **more}


def _whole(text: str, limit: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 0 < int(text) <= limit):
        raise ValueError(f"give a whole number above 0, at most {limit}")
    return int(text)


def _seconds(text: str, limit: float = 86_400) -> float:
    if not _SECONDS.fullmatch(text) or not 0.01 <= float(text) <= limit:
        raise ValueError(f"give seconds, at least 0.01 and at most {limit}")
    return float(text)


def _member(text: str) -> str:
    if not _MEMBER.fullmatch(text):
        raise ValueError("give 1 to 100 letters, digits, '.', '_' and '-'")
    return text


def _isolation(text: str) -> str:
    if text not in ("read_committed", "read_uncommitted"):
        raise ValueError("give read_committed or read_uncommitted")
    return text


OPTIONS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(CLIENT_OPTIONS, str),
    "partitions": partial(_whole, limit=100_000),
    "replication": partial(_whole, limit=1_000),
    "session_timeout": partial(_seconds, limit=3_600),
    "max_poll_interval": _seconds,
    "isolation": _isolation,
    "member": _member,
}

_KINDS: dict[int, type[SeriatimError]] = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: NotFound,
    KafkaError._UNKNOWN_TOPIC: NotFound,  # noqa: SLF001 - its name in the library
    KafkaError._UNKNOWN_PARTITION: NotFound,  # noqa: SLF001
    KafkaError.GROUP_ID_NOT_FOUND: NotFound,
    KafkaError.TOPIC_ALREADY_EXISTS: AlreadyExists,
    KafkaError.TOPIC_EXCEPTION: InvalidArgument,
    KafkaError.INVALID_PARTITIONS: InvalidArgument,
    KafkaError.INVALID_REPLICATION_FACTOR: InvalidArgument,
    KafkaError.INVALID_CONFIG: InvalidArgument,
    KafkaError.INVALID_SESSION_TIMEOUT: InvalidArgument,
    KafkaError.MSG_SIZE_TOO_LARGE: InvalidArgument,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: PermissionDenied,
    KafkaError.GROUP_AUTHORIZATION_FAILED: PermissionDenied,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: PermissionDenied,
    KafkaError.SASL_AUTHENTICATION_FAILED: Unauthenticated,
    KafkaError._AUTHENTICATION: Unauthenticated,  # noqa: SLF001
    KafkaError.NON_EMPTY_GROUP: FailedPrecondition,
    KafkaError._MSG_TIMED_OUT: OutcomeUnknown,  # noqa: SLF001
    KafkaError._QUEUE_FULL: ResourceExhausted,  # noqa: SLF001
    KafkaError._FATAL: StoreLost,  # noqa: SLF001
}


def error_of(
    failure: KafkaError | KafkaException, what: str, otherwise: type[SeriatimError] = StoreFailed
) -> SeriatimError:
    """Our error for one of Kafka's, which occurred during ``what``; ``otherwise`` is the default type."""
    found = failure.args[0] if isinstance(failure, KafkaException) else failure
    kind = _KINDS.get(found.code(), otherwise)
    return kind(f"{what}: Kafka says: {found.str() or found.name()}")


def no_connection(address: Address, failure: KafkaError) -> SeriatimError:
    """Our error if no broker answers, or none accepts the login."""
    error = error_of(failure, f"no connection to Kafka at {address.servers}")
    advice = "start it, or correct the address and its option security"
    if isinstance(error, Unauthenticated):
        advice = f"correct the username, the password ({ENVIRONMENT}PASSWORD) and the option sasl"
    return type(error)(f"{error.message}; {advice}")
