"""Steps that put a wrong root in the place of the cluster root, and look for what it has destroyed."""

from __future__ import annotations

from lakelog.replication.errors import InvalidRequestException
from lakelog.replication.storage.delta.commit_format import read_commits_after
from lakelog.replication.storage.log.truncate import DELETION
from lakelog.verification.roots.wrong_roots import copy_cluster_root as copy
from lakelog.verification.roots.wrong_roots import replace_cluster_root as replace
from lakelog.verification.scenarios.observation import brokers_in_words
from lakelog.verification.scenarios.scene import Observed, Scene, hold

_WORK_SECONDS = 30


def copy_cluster_root(scene: Scene) -> Observed:
    """Copies the cluster root, as a backup does."""
    copy(scene.cluster.roots)
    return Observed({}, scene.cluster.uri)


def replace_cluster_root(scene: Scene, *, by: str) -> Observed:
    """Puts something else in the place of the cluster root."""
    scene.note_logs()
    replace(scene.cluster.roots, by, scene.cluster.config)
    return Observed({"root_is_away": True}, f"{scene.cluster.uri} is {by}")


def bring_cluster_root_back(scene: Scene) -> Observed:
    """Puts the cluster root back, and waits until all running brokers send heartbeats to it."""
    roots, uri = scene.cluster.roots, scene.cluster.uri
    if not roots.is_away(uri):
        raise InvalidRequestException(f"{uri}: has not been replaced")
    roots.bring_back(uri)
    first: dict[int, tuple[int, int]] = {}

    def look() -> Observed:
        now = _beats(scene)  # in an object store this process believes the root again a second later
        first.update(first or now)
        silent = [broker for broker in scene.cluster.running() if now[broker] == first[broker]]
        fault = f"no heartbeat of {brokers_in_words(silent)}" if silent else None
        return Observed({"root_is_away": roots.is_away(uri)}, uri, fault)

    return hold(look, _WORK_SECONDS)


def no_replica_deleted(scene: Scene) -> Observed:
    """Checks that no broker has deleted a replica since the cluster root was replaced for the first time."""
    faults = [fault for broker, version in scene.log_versions.items() if (fault := _deletions(scene, broker, version))]
    return Observed(
        {}, "none" if scene.log_versions else "the cluster root was not replaced", "; ".join(faults) or None
    )


def _beats(scene: Scene) -> dict[int, tuple[int, int]]:
    return {b: (found.broker_epoch, found.heartbeat) for b, found in scene.view.cluster.refresh_brokers().items()}


def _deletions(scene: Scene, broker: int, version: int) -> str:
    """What a broker has deleted after this version of its log, as text; empty if nothing."""
    log = scene.view.log(broker).refresh()
    commits = read_commits_after(scene.view.log(broker).root, version)
    if len(commits) < log.version - version:
        return f"the commits of broker {broker} after version {version} are gone"
    found = [commit.version for commit in commits if commit.info.get("why") == DELETION]
    return f"broker {broker} has deleted a replica in version {found[0]} of its log" if found else ""
