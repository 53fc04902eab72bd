"""The metadata that quotas read, built by hand: two partitions of one topic, and their throttled replicas."""

from lakelog.replication.config import Config
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from tests.storage.logs import P0, P1, TOPIC


class QuotaCache:
    """A metadata cache. `replicas`: the settings of the topic that name throttled replicas; `rates`: those of brokers,
    by broker and key."""

    def __init__(self, replicas=None, rates=None, isr=(1,), brokers=(1, 2), leader=1):
        self.replicas = replicas or {}
        self.rates = rates or {}
        self.tables = {}
        self.partitions = {
            p: PartitionRegistration(TOPIC, p.topic_id, p.partition, brokers, leader, 0, isr) for p in (P0, P1)
        }

    def throttled_replicas(self, key):
        named = self.replicas.get(key.removesuffix(".replication.throttled.replicas"))
        return {TOPIC: named} if named else {}

    def config_of_broker(self, broker_id):
        told = {f"{side}.replication.throttled.rate": rate for side, rate in self.rates.get(broker_id, {}).items()}
        return Config().dynamic(told)

    def last_rows(self, broker_id):
        return self.tables[broker_id].replicas if broker_id in self.tables else {}
