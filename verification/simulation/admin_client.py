"""A client that sends admin requests: create and delete topics, move partitions, elect leaders."""

from __future__ import annotations

from random import Random
from typing import Any

from lakelog.replication.protocol.admin_request import AdminRequest
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.verification.simulation.actor import Actor, Work
from lakelog.verification.simulation.events import AnswerLost
from lakelog.verification.simulation.stage import Stage
from lakelog.verification.simulation.tables import Admin, Topics
from lakelog.verification.simulation.world_state import UNCLEAN_KEY

_PENDING = 3  # the most waiting requests

Arguments = dict[str, Any]


class SimulatedAdminClient(Actor):
    """Sends one request after the other, whether they still make sense when a controller decides them or not."""

    def __init__(self, world: Stage, name: str) -> None:
        super().__init__(world, name)
        setting = world.setting
        self._weights = {
            self._move: 8 * setting.reassigns, self._cancel: 3 * setting.reassigns, self._elect_preferred: 4,
            self._elect_unclean: 2 * setting.unclean_allowed, self._alter_configs: 3 * setting.unclean_allowed,
            self._delete: 2 * setting.deletes, self._do_nothing: 6,
        }  # fmt: skip

    def work(self) -> Work:
        while True:
            yield
            try:
                topics: Topics = self.look(self.world.topics)[1]
                yield
                version, metadata = self.look(self.world.metadata)
                wish = self._wish(topics, sorted(metadata.partitions.values(), key=_number))
                if wish is not None:
                    yield from self._ask(AdminRequest(f"t{self.world.topic_id()}", *wish, metadata_version=version))
            except AnswerLost as error:
                self.say("gives it up: %r", error)

    def _ask(self, request: AdminRequest) -> Work:
        def decide(_: int, state: Admin) -> Admin | None:
            is_asked = any(other.request_id == request.request_id for other in state.requests)
            has_asked_enough = len(state.requests) >= _PENDING
            return None if is_asked or has_asked_enough else state._replace(requests=(*state.requests, request))

        yield from self.transact(self.world.admin, decide, f"{request.kind} {request.arguments}")

    def _wish(self, topics: Topics, partitions: list[PartitionRegistration]) -> tuple[str, Arguments] | None:
        random = Random(self.turn.salt)
        if not topics.topics:
            return self._create(random)
        if not partitions:
            return None
        chosen = random.choices(list(self._weights), list(self._weights.values()))[0]
        return chosen(random, random.choice(partitions))

    def _create(self, random: Random) -> tuple[str, Arguments]:
        factors = sorted({2, min(3, len(self.world.broker_ids))})
        configs = {UNCLEAN_KEY: str(self.world.setting.unclean_allowed).lower()}
        return "create_topic", {
            "topic": self.world.topic, "partitions": self.world.setting.partitions,
            "replication_factor": random.choice(factors), "configs": configs,
        }  # fmt: skip

    def _move(self, random: Random, registration: PartitionRegistration) -> tuple[str, Arguments]:
        """Adds a broker, replaces one, removes one, or changes the order."""
        others = [broker for broker in self.world.broker_ids if broker not in registration.replicas]
        target = random.sample(registration.replicas, len(registration.replicas))
        if len(target) > 1 and random.random() < 0.4:
            target.pop()
        if others and random.random() < 0.7:
            target.insert(random.randint(0, len(target)), random.choice(others))
        return "alter_partition_reassignments", _of(registration, target)

    def _cancel(self, _: Random, registration: PartitionRegistration) -> tuple[str, Arguments]:
        return "alter_partition_reassignments", _of(registration, None)

    def _elect_preferred(self, _: Random, registration: PartitionRegistration) -> tuple[str, Arguments]:
        return "elect_leaders", {"election_type": "preferred", "partitions": [registration.name]}

    def _elect_unclean(self, _: Random, registration: PartitionRegistration) -> tuple[str, Arguments]:
        return "elect_leaders", {"election_type": "unclean", "partitions": [registration.name]}

    def _alter_configs(self, random: Random, registration: PartitionRegistration) -> tuple[str, Arguments]:
        wanted = random.choice(("true", "false"))
        return "alter_configs", {"topic": registration.topic, "put": {UNCLEAN_KEY: wanted}, "delete": []}

    def _delete(self, _: Random, registration: PartitionRegistration) -> tuple[str, Arguments]:
        return "delete_topic", {"topic": registration.topic}

    def _do_nothing(self, _: Random, __: PartitionRegistration) -> None:
        return None


def _of(registration: PartitionRegistration, target: list[int] | None) -> Arguments:
    return {"reassignments": {registration.name: target}}


def _number(registration: PartitionRegistration) -> int:
    return registration.partition
