"""The folder of a new cluster: verbs that make one, and break it on purpose, touch none that is there already."""

import argparse
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
