import pytest

from tests.long.shell import Shell


@pytest.fixture
def shell(tmp_path):
    with Shell(tmp_path) as made:
        yield made


@pytest.fixture(scope="session", autouse=True)
def unsynced_files():
    """These tests simulate a power failure on a real file system: files are synced."""
