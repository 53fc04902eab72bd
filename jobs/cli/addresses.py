"""The addresses at which commands listen."""

import argparse
import ipaddress
import socket
from typing import NamedTuple

from lakelog.jobs.cli.numbers import whole_number
from lakelog.replication.errors import InvalidConfigurationException

LOOPBACK = "127.0.0.1"
_MOST_PORTS = 65_535


class Address(NamedTuple):
    """Where a server listens. An IPv6 address is without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def family(self) -> socket.AddressFamily:
        """The family of its socket."""
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET


def port_number(text: str) -> int:
    """A type of argparse: the number of a port; 0 chooses one that is free."""
    return whole_number(0, _MOST_PORTS)(text)


def host_name(text: str) -> str:
    """A type of argparse: the name or address of a host; of an IPv6 address also with brackets."""
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if not host or any(letter in host for letter in "/?#@ ") or (":" in host and not _is_address(host)):
        raise argparse.ArgumentTypeError(f"{text!r} is not the name or address of a host, such as {LOOPBACK}")
    return host


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def cannot_listen(given: str, error: Exception) -> InvalidConfigurationException:
    """The error of an option, given with its value, that names an address at which this process cannot listen."""
    return InvalidConfigurationException(f"{given}: {getattr(error, 'strerror', None) or error}")
