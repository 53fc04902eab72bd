"""The roots of a cluster that a verb makes: their owners, the names of their folders, and `--store`, which says where
they are."""

from __future__ import annotations

from argparse import ArgumentParser

from lakelog.replication.config import Owner

DISK, S3 = "disk", "s3"


def owners(brokers: int) -> tuple[Owner, ...]:
    """The owners of the roots of a cluster with `brokers` brokers."""
    return ("cluster", *range(1, brokers + 1))


def root_name(owner: Owner) -> str:
    """The name of the folder of the cluster's root or of a broker's: `cluster`, `broker-1`."""
    return owner if isinstance(owner, str) else f"broker-{owner}"


def add_store(parser: ArgumentParser, default: str | None = DISK, default_in_words: str = DISK) -> None:
    """The argument `--store`. `default` None: the verb sees whether it was given."""
    where = "disk: local folders; s3: each root in an S3 server of its own, which this command runs"
    words = f"where to keep the roots: {where}; default: {default_in_words}"
    parser.add_argument("--store", choices=(DISK, S3), default=default, help=words)
