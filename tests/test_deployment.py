"""The files of `deploy/`: their commands are ones that Lakelog has, and what they name is there."""

import re
import shlex
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import yaml

HOUSE = Path(__file__).resolve().parent.parent
DEPLOY = HOUSE / "deploy"
UNITS = sorted(DEPLOY.glob("systemd/*.service"))
OBJECTS = [each for path in DEPLOY.glob("kubernetes/*.yaml") for each in yaml.safe_load_all(path.read_text())]
WORKLOADS = [each for each in OBJECTS if each["kind"] in ("Deployment", "StatefulSet")]
PROJECT = tomllib.loads((HOUSE / "pyproject.toml").read_text())["project"]
EXAMPLES = {
    "LAKELOG_CLUSTER": "s3://bucket/cluster", "LAKELOG_ROOT": "s3://bucket/broker", "LAKELOG_RACK": "eu-1",
    "LAKELOG_METRICS_PORT": "9404",
}  # fmt: skip


def name_of(found):
    return found.stem if isinstance(found, Path) else f"{found['kind']} {found['metadata']['name']}"


def parsed(words, monkeypatch):
    """The arguments that a verb gets. Its parser ends the test if it does not know one."""
    monkeypatch.setenv("LAKELOG_CLUSTER", EXAMPLES["LAKELOG_CLUSTER"])
    verb, *rest = [word.replace("/etc/lakelog", str(HOUSE / "conf")) for word in words]
    return import_module(f"lakelog.jobs.{verb}").make_parser().parse_args(rest)


def settings(unit):
    """The settings of a unit; of one that is given twice, both."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("unit", UNITS, ids=name_of)
def test_a_unit_starts_a_command_that_there_is(unit, monkeypatch):
    (line,) = settings(unit)["ExecStart"]
    program, *words = shlex.split(line)
    assert program == "/opt/lakelog/bin/lakelog"
    words = [re.sub(r"\$\{(\w+)\}", lambda found: EXAMPLES[found[1]], word).replace("%i", "1") for word in words]
    args = parsed(words, monkeypatch)
    assert unit.stem.partition("@")[0] == f"lakelog-{words[0]}"
    assert (args.cluster, args.log_format) == (EXAMPLES["LAKELOG_CLUSTER"], "json")


@pytest.mark.parametrize("unit", UNITS, ids=name_of)
def test_a_unit_is_started_again_for_ever_and_its_variables_come_from_files(unit):
    found = settings(unit)
    assert (found["Restart"], found["StartLimitIntervalSec"]) == (["always"], ["0"])
    named = set(re.findall(r"\$\{(\w+)\}", found["ExecStart"][0]))
    assert "/etc/lakelog/cluster.env" in found["EnvironmentFile"]
    assert not named or "/etc/lakelog/broker-%i.env" in found["EnvironmentFile"]
    assert named <= set(re.findall(r"LAKELOG_\w+", unit.read_text().partition("ExecStart")[0])), "told in a comment"


def test_a_broker_gets_its_signal_alone():
    """The Python workers of its JVM, which do not ignore it, have to live while it hands over."""
    (broker,) = (settings(unit) for unit in UNITS if unit.stem.startswith("lakelog-broker"))
    assert broker["KillMode"] == ["mixed"]


def pods():
    return [(each, each["spec"]["template"]) for each in WORKLOADS]


def containers():
    return [(each, container) for each, pod in pods() for container in pod["spec"]["containers"]]


def variables(container):
    """The names of the variables that a container has for certain."""
    maps = {each["metadata"]["name"]: each["data"] for each in OBJECTS if each["kind"] == "ConfigMap"}
    known = {each["name"] for each in container.get("env", ())}
    for source in container["envFrom"]:
        known |= maps[source["configMapRef"]["name"]].keys() if "configMapRef" in source else set()
    return known


@pytest.mark.parametrize(("workload", "container"), containers(), ids=lambda each: each.get("kind") or each["name"])
def test_a_container_runs_a_command_that_there_is(workload, container, monkeypatch):
    named = {name for word in container["args"] for name in re.findall(r"\$\((\w+)\)", word)}
    assert named | {"LAKELOG_CLUSTER"} <= variables(container)
    args = parsed([re.sub(r"\$\((\w+)\)", "1", word) for word in container["args"]], monkeypatch)
    assert workload["metadata"]["name"] == f"lakelog-{container['args'][0]}"
    listens = {getattr(args, name, None) for name in ("metrics_port", "port")}
    if "listen" in vars(args):
        listens.add(args.listen.port)
    (port,) = (each["containerPort"] for each in container["ports"])
    assert port in listens
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in workload["spec"]["template"]["spec"]["volumes"]}


def test_selectors_find_pods_and_ports_have_names():
    of_pods = [(pod["metadata"]["labels"], pod["spec"]["containers"][0]) for _, pod in pods()]
    for each, pod in pods():
        assert each["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    for each in OBJECTS:
        if each["kind"] == "Service":
            (container,) = (found for labels, found in of_pods if each["spec"]["selector"].items() <= labels.items())
            ports = {port["name"] for port in container["ports"]}
            assert {port["targetPort"] for port in each["spec"]["ports"]} <= ports
        if each["kind"] == "PodDisruptionBudget":
            wanted = each["spec"]["selector"]["matchLabels"]
            assert [labels for labels, _ in of_pods if wanted.items() <= labels.items()]


def test_the_console_of_a_pod_is_reached_by_no_other_pod():
    (console,) = (container for _, container in containers() if container["name"] == "ui")
    assert not [word for word in console["args"] if word.startswith("--host")]
    assert not [each for each in OBJECTS if each["kind"] == "Service" and each["metadata"]["name"] == "lakelog-ui"]


def test_the_image_has_the_command_and_extras_that_the_project_has():
    text = (DEPLOY / "Containerfile").read_text()
    (command,) = re.findall(r'^ENTRYPOINT \["(\w+)"\]$', text, re.M)
    (extras,) = re.findall(r"'/src\[([\w,]+)\]'", text)
    assert command in PROJECT["scripts"]
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
    (module,) = re.findall(r"-m (lakelog[\w.]+)", text)
    assert import_module(module)
