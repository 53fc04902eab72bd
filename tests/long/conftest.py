import pytest

from tests.long.shell import Shell


@pytest.fixture
def shell(tmp_path):
    with Shell(tmp_path) as made:
        yield made
