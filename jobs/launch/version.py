"""The version of Lakelog."""

from importlib import metadata


def version() -> str:
    """The version in pyproject.toml, as it was installed; "0+unknown" for a zip on the path."""
    try:
        return metadata.version("lakelog")
    except metadata.PackageNotFoundError:
        return "0+unknown"
