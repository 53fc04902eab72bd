"""The file of figures that a long run writes at its end: what keeps it from being written is said at the start."""

import argparse
import os
from pathlib import Path


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
