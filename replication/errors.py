"""The errors, under Kafka's names (`org.apache.kafka.common.errors`), so that what is known of them stays true."""


class LakelogException(Exception):
    """Base of every error that Lakelog raises on purpose. `retriable`: the same request may succeed later."""

    retriable = False

    @property
    def name(self) -> str:
        """Kafka's name of the error, as it stands in tables, scripts and answers."""
        return type(self).__name__


class RetriableException(LakelogException):
    """The same request may succeed later, unchanged."""

    retriable = True


class InvalidConfigurationException(LakelogException):
    """A configuration has unknown keys or values that are not allowed; the text lists all of them."""


class InconsistentClusterIdException(LakelogException):
    """A root is not formatted, belongs to another cluster or broker, or its format is newer than this code."""


class InvalidTopicException(LakelogException):
    """A topic name that is empty, too long or has characters outside [a-zA-Z0-9._-]."""


class TopicExistsException(LakelogException):
    """A topic of that name exists."""


class UnknownTopicOrPartitionException(RetriableException):
    """No such topic or partition, here or at all."""


class InvalidPartitionsException(LakelogException):
    """A number of partitions that is not allowed, or a record for a partition that the topic does not have."""


class InvalidReplicationFactorException(LakelogException):
    """A replication factor below 1 or above the number of brokers."""


class InvalidReplicaAssignmentException(LakelogException):
    """An assignment with duplicate or unknown brokers, uneven lists or gaps in its partitions."""


class InvalidRecordException(LakelogException):
    """Records that cannot be a batch: a column is missing or of the wrong type."""


class InvalidRequiredAcksException(LakelogException):
    """acks is none of 0, 1 and all."""


class NotEnoughReplicasException(RetriableException):
    """acks=all, and fewer replicas in sync than min.insync.replicas: nothing was written."""


class NotEnoughReplicasAfterAppendException(RetriableException):
    """acks=all, written, and then fewer in sync than min.insync.replicas."""


class TimeoutException(RetriableException):
    """The time given for a request has passed; what is known of its outcome is in the text."""


class NotLeaderOrFollowerException(RetriableException):
    """The replica is not what the request takes it for."""


class LeaderNotAvailableException(RetriableException):
    """The partition has no leader, or its leader has not taken up its role yet."""


class EligibleLeadersNotAvailableException(RetriableException):
    """No replica may lead: none is live and in sync and, if unclean elections are allowed, none is live at all."""


class PreferredLeaderNotAvailableException(RetriableException):
    """The preferred leader is not live, or not in sync."""


class ElectionNotNeededException(RetriableException):
    """The partition has the leader that an election would give it."""


class NoReassignmentInProgressException(LakelogException):
    """The partition is not being moved, so that there is nothing to cancel."""


class TopicDeletionDisabledException(LakelogException):
    """`delete.topic.enable` is false."""


class InvalidGroupIdException(LakelogException):
    """A consumer without the name of a group: it has nowhere to keep offsets."""


class BrokerNotAvailableException(RetriableException):
    """No such broker is registered."""


class FencedLeaderEpochException(LakelogException):
    """The request's leader epoch is older than the replica's."""


class UnknownLeaderEpochException(RetriableException):
    """The request's leader epoch is newer than the replica's."""


class OffsetOutOfRangeException(LakelogException):
    """An offset below the log start or above the log end."""


class OffsetNotAvailableException(RetriableException):
    """A new leader does not know yet how much is committed; it will soon."""


class KafkaStorageException(RetriableException):
    """A root cannot be read or written."""


class PolicyViolationException(LakelogException):
    """The settings of a topic or of the cluster forbid what was asked."""


class CorruptRecordException(LakelogException):
    """A data file is missing, or is not what its commit or its footer says."""


class OutOfOrderSequenceException(LakelogException):
    """A producer's sequence number does not follow its last one."""


class ProducerFencedException(LakelogException):
    """A newer producer was started under the same name."""


class StaleBrokerEpochException(LakelogException):
    """A newer process has registered under this broker id; this one must stop."""


class DuplicateBrokerRegistrationException(LakelogException):
    """The broker id is taken by a living broker at another root."""


class InvalidRequestException(LakelogException):
    """A request asks for something that there is not."""


class RequestCancelledException(LakelogException):
    """Somebody has cancelled the request before a controller carried it out."""


class UnknownServerException(LakelogException):
    """The controller has answered with an error that this version does not know."""


class ControllerMovedException(LakelogException):
    """Another controller has been elected; this one must stand by."""


class ControllerNotAvailableException(RetriableException):
    """No controller is active at the moment."""


def error_named(name: str, message: str) -> LakelogException:
    """The error that a controller has answered with, from its name and text."""
    known = {found.__name__: found for found in _subclasses(LakelogException)}
    return known.get(name, UnknownServerException)(message)


def _subclasses(base: type[LakelogException]) -> list[type[LakelogException]]:
    return [c for child in base.__subclasses__() for c in (child, *_subclasses(child))]
