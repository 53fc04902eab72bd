"""Azure Blob Storage on this machine: Azurite, Microsoft's server for tests, from the npm registry."""

import base64
import hashlib
import hmac
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

from lakelog.verification.server_process import free_ports
from tests.processes import wait_until

PACKAGE = "azurite@3.35.0"
# The account that every Azurite has, and its documented key.
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_VERSION = "2021-08-06"
_SECONDS = 180  # the first use downloads it


@contextmanager
def azurite(folder: Path, container: str) -> Iterator[dict[str, str]]:
    """Runs the server with an empty container. Yields the options of its clients."""
    (port,) = free_ports(1)
    words = ["npm", "exec", "--yes", "--package", PACKAGE, "--", "azurite-blob", "--blobHost", "127.0.0.1"]
    words += ["--blobPort", str(port), "--location", str(folder / "azurite"), "--silent", "--skipApiVersionCheck"]
    endpoint = f"http://127.0.0.1:{port}/{_ACCOUNT}"
    with (folder / "azurite.log").open("wb") as log:
        server = subprocess.Popen(words, stdout=log, stderr=log, cwd=folder, start_new_session=True)
    try:
        wait_until(lambda: _create(endpoint, container), "Azurite listens", _SECONDS)
        yield {
            "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
            "AZURE_STORAGE_ENDPOINT": endpoint,
            "AZURE_ALLOW_HTTP": "true",
        }
    finally:
        subprocess.run(
            ["pkill", "-KILL", "-g", str(server.pid)], check=False
        )  # npm, and the server that it has started
        server.wait()


def _create(endpoint: str, container: str) -> bool:
    """Creates a container. False while the server does not answer."""
    now = format_datetime(datetime.now(UTC), usegmt=True)
    signed = f"x-ms-date:{now}\nx-ms-version:{_VERSION}"
    lines = "PUT" + "\n" * 12 + f"{signed}\n/{_ACCOUNT}/{_ACCOUNT}/{container}\nrestype:container"
    signature = base64.b64encode(hmac.digest(base64.b64decode(_KEY), lines.encode(), hashlib.sha256)).decode()
    headers = {
        "x-ms-date": now,
        "x-ms-version": _VERSION,
        "Authorization": f"SharedKey {_ACCOUNT}:{signature}",
        "Content-Length": "0",
    }
    try:
        with urlopen(Request(f"{endpoint}/{container}?restype=container", method="PUT", headers=headers)) as answer:
            return answer.status == 201
    except URLError:
        return False
