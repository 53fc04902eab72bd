"""The packages `lakelog` and `pyspark_lakelog` as one zip, for executors on other machines (`--py-files`)."""

import hashlib
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2].resolve()  # not of the file itself: in a checkout its folder is a link
SOURCES = PACKAGE.parent  # of a checkout its folder, which has `conf` too
_DATA_SOURCE = SOURCES / "pyspark_lakelog"  # what Spark finds `format("lakelog")` in


def code_archive() -> Path:
    """The zip of the code as it is now; its name is its content, so it is made again only for other content."""
    archive = _folder() / f"lakelog-{_digest()}.zip"
    if not archive.exists():
        _write(archive)
    return archive


def _folder() -> Path:
    """The environment's own folder. A name in /tmp that others can guess would let them slip us their code."""
    if os.access(sys.prefix, os.W_OK):
        folder = Path(sys.prefix, "cache", "code")
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    return Path(tempfile.mkdtemp(prefix="lakelog-"))


def _files() -> Iterator[Path]:
    """In a checkout the folders of the package are links."""
    folders = (found for root in (PACKAGE, _DATA_SOURCE) for found in os.walk(root, followlinks=True))
    for folder, _, names in sorted(folders):
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))


def _digest() -> str:
    digest = hashlib.sha256()
    for path in _files():
        digest.update(f"{path.relative_to(SOURCES)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _write(archive: Path) -> None:
    """By way of a rename: brokers that start together may all be making it."""
    scratch = archive.with_suffix(f".{os.getpid()}")
    with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as file:
        for path in _files():
            file.write(path, path.relative_to(SOURCES))
    scratch.replace(archive)
