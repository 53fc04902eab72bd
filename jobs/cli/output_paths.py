"""Paths of the command line that a long run writes: the folder of its cluster, and the file of its figures. Both are
checked before the run begins."""

import argparse
import os
from pathlib import Path

from lakelog.replication.errors import InvalidConfigurationException

_SHOWN = 5


def empty_folder(text: str) -> Path:
    """A folder of the command line that is empty, or is not there yet."""
    try:
        folder = Path(text).expanduser()
        check_empty(folder)
    except (InvalidConfigurationException, RuntimeError) as error:  # no such user's home
        raise argparse.ArgumentTypeError(str(error)) from None
    return folder


def check_empty(folder: Path) -> None:
    """Raises InvalidConfigurationException if the folder holds anything, is a file, or cannot be read."""
    try:
        held = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise InvalidConfigurationException(f"{folder}: {error.strerror}; name an empty folder") from None
    if held:
        raise InvalidConfigurationException(
            f"{folder}: must be empty, as a new cluster is made there; it holds {', '.join(held[:_SHOWN])}"
        )


def out_file(text: str) -> Path:
    """A file of the command line that can be written."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder; name a file")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{path.parent} is not a folder; name a file in a folder that exists")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written; name a file that can")
    return path
