"""The public names of `lakelog`, and the cost of importing them."""

import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

import pytest

import lakelog

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
WITHOUT_SPARK = [
    "AIOConsumer", "AIOProducer", "AdminClient", "Config", "Consumer", "LakelogException", "Producer",
    "offsets_behind_latest", "raise_first_error",
]  # fmt: skip
WITH_SPARK = ["LocalCluster", "read_committed", "read_latest", "register_views", "spark_session"]


def python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def test_the_face_has_these_names():
    assert sorted(lakelog.__all__) == sorted([*WITHOUT_SPARK, *WITH_SPARK, "__version__"])
    assert set(lakelog.__all__) <= set(dir(lakelog))


@pytest.mark.parametrize("name", [*WITHOUT_SPARK, *WITH_SPARK])
def test_a_public_name_is_that_of_its_module(name):
    found = getattr(lakelog, name)
    assert getattr(import_module(found.__module__), name) is found


def test_importing_the_package_imports_nothing_else():
    program = "import sys, lakelog; print([m for m in sys.modules if m.startswith(('lakelog.', 'pyspark', 'pyarrow'))])"
    assert python(program).strip() == "[]"


def test_clients_need_no_spark():
    program = f"import sys; from lakelog import {', '.join(WITHOUT_SPARK)}; print('pyspark' in sys.modules)"
    assert python(program).strip() == "False"


def test_without_spark_a_name_that_needs_it_says_what_to_install():
    program = f"""
import sys, lakelog
sys.modules["pyspark"] = None
for name in {WITH_SPARK}:
    try:
        getattr(lakelog, name)
    except ModuleNotFoundError as error:
        print(error)
"""
    assert python(program).splitlines() == [f"{name} needs Spark: pip install 'lakelog[spark]'" for name in WITH_SPARK]


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(AttributeError, match="'lakelog' has no attribute 'Produce'; it has AIOConsumer, "):
        _ = lakelog.Produce


def test_the_version_is_that_of_the_installed_package(monkeypatch):
    assert f'version = "{lakelog.__version__}"' in PYPROJECT.read_text()

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert lakelog.__version__ == "0+unknown"
