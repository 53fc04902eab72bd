"""The errors, under Kafka's names (`org.apache.kafka.common.errors`) and with Kafka's meanings."""

from collections.abc import Callable
from typing import Any


class LakelogException(Exception):
    """Base class of Lakelog's errors. `retriable`: the same request may succeed later, unchanged."""

    retriable = False

    @property
    def name(self) -> str:
        """Kafka's name of the error, as used in tables, scenarios and outcomes."""
        return type(self).__name__


class RetriableException(LakelogException):
    """The same request may succeed later, unchanged."""

    retriable = True


class InvalidConfigurationException(LakelogException):
    """A configuration has unknown keys or values that are not allowed. The text lists all of them."""


class InconsistentClusterIdException(LakelogException):
    """A root is not formatted, belongs to another cluster or broker, or has another format version."""


class InvalidTopicException(LakelogException):
    """A topic name is empty, too long, reserved, not a str, or has characters outside [a-zA-Z0-9._-]."""


class TopicExistsException(LakelogException):
    """A topic of that name exists, or is still being deleted."""


class UnknownTopicOrPartitionException(RetriableException):
    """The topic or partition does not exist, or not on this broker."""


class UnknownTopicIdException(LakelogException):
    """An offset belongs to a topic that was deleted. A topic of its name that was made since has other records."""


class InvalidPartitionsException(LakelogException):
    """A number of partitions is not allowed, or the topic does not have the given partition."""


class InvalidReplicationFactorException(LakelogException):
    """A replication factor is below 1 or above the number of live brokers."""


class InvalidReplicaAssignmentException(LakelogException):
    """An assignment has duplicate or unknown brokers, lists of different lengths, or gaps in its partitions."""


class InvalidRecordException(LakelogException):
    """Records cannot be sent: a column is missing, unknown or of the wrong type, or a value is out of range."""


class RecordTooLargeException(LakelogException):
    """A record is larger than `max.message.bytes` of its topic. Kafka's code for it is MESSAGE_TOO_LARGE."""


class InvalidRequiredAcksException(LakelogException):
    """`acks` is not 0, 1 or all."""


class NotEnoughReplicasException(RetriableException):
    """With acks=all, the ISR is smaller than min.insync.replicas. Nothing was written."""


class NotEnoughReplicasAfterAppendException(RetriableException):
    """With acks=all, the ISR became smaller than min.insync.replicas after the leader had appended the records."""


class TimeoutException(RetriableException):
    """A request timed out. The text says what is known of its outcome."""


class NotLeaderOrFollowerException(RetriableException):
    """The broker does not lead the partition, or does not follow it, as the request expects."""


class LeaderNotAvailableException(RetriableException):
    """The partition has no leader, or its leader has not taken up its role yet."""


class EligibleLeadersNotAvailableException(RetriableException):
    """No replica may lead: none in the ISR is alive. If unclean elections are allowed: none at all is alive."""


class PreferredLeaderNotAvailableException(RetriableException):
    """The preferred leader is not alive, or not in the ISR."""


class ElectionNotNeededException(RetriableException):
    """The partition already has the leader that the election would choose."""


class NoReassignmentInProgressException(LakelogException):
    """The partition has no reassignment to cancel."""


class TopicDeletionDisabledException(LakelogException):
    """`delete.topic.enable` is false."""


class InvalidGroupIdException(LakelogException):
    """A consumer stores or reads offsets without the name of a group."""


class GroupIdNotFoundException(LakelogException):
    """There is no consumer group of that name."""


class GroupNotEmptyException(LakelogException):
    """The group has live members, so that no other client may change or delete its offsets."""


class UnknownMemberIdException(LakelogException):
    """The consumer is no member of the group, or not any more. A commit from outside meets a group with members."""


class FencedInstanceIdException(LakelogException):
    """Another consumer with the same `group.instance.id` has taken the place of this one in the group."""


class IllegalGenerationException(LakelogException):
    """The group has a newer generation than the one in which the member has last seen itself in it."""


class InconsistentGroupProtocolException(LakelogException):
    """A consumer has no assignor that all members of its group have."""


class CommitFailedException(LakelogException):
    """A member's offsets were not committed, because others may own its partitions by now."""


class NoOffsetForPartitionException(LakelogException):
    """The group has committed no offset for a partition, and `auto.offset.reset` is `none`."""


class BrokerNotAvailableException(RetriableException):
    """No such broker is registered."""


class FencedLeaderEpochException(LakelogException):
    """The request's leader epoch is older than the replica's."""


class UnknownLeaderEpochException(RetriableException):
    """The request's leader epoch is newer than the replica's."""


class OffsetOutOfRangeException(LakelogException):
    """An offset is below the log start, or above the log end or the high watermark."""


class OffsetNotAvailableException(RetriableException):
    """A new leader does not know the high watermark yet. Retry."""


class KafkaStorageException(RetriableException):
    """A root cannot be read or written."""


class InconsistentClusterRootException(KafkaStorageException):
    """The cluster root is another one, or in an older state, than this process has seen. It is not read or written."""


class FencedClusterRootException(LakelogException):
    """The cluster root was recovered elsewhere, so this one counts no more: see `lakelog recover`."""


class InconsistentBrokerRootException(KafkaStorageException):
    """A broker's root is another one, or in an older state, than its running process has seen. The process writes
    nothing to it, and registers again, as one that has lost its log."""


class PolicyViolationException(LakelogException):
    """A setting of the topic or of the cluster forbids the request."""


class CorruptRecordException(LakelogException):
    """A data file is missing, or differs from its commit or its footer."""


class OutOfOrderSequenceException(LakelogException):
    """A batch's sequence number does not follow the producer's last one."""


class DuplicateSequenceException(LakelogException):
    """The log has other records under the batch's sequence number: two processes use the identity of one producer."""


class ProducerFencedException(LakelogException):
    """A newer producer was started under the same name."""


class StaleBrokerEpochException(LakelogException):
    """A newer process has registered under this broker id; this one must stop."""


class DuplicateBrokerRegistrationException(LakelogException):
    """Another process with this broker id is alive."""


class IllegalStateException(LakelogException):
    """A client is used after it was closed, or waits for itself."""


class ConcurrentModificationException(LakelogException):
    """A client for one thread at a time is used while another thread uses it. Kafka's consumer raises Java's."""


class InvalidRequestException(LakelogException):
    """A request has a wrong argument, or names something that does not exist."""


class RequestCancelledException(LakelogException):
    """The request was cancelled or removed before a controller carried it out."""


class UnknownServerException(LakelogException):
    """The controller failed unexpectedly, or answered with an error that this version does not know."""


class ControllerMovedException(LakelogException):
    """Another controller has been elected, and this one must stop acting."""


class ControllerNotAvailableException(RetriableException):
    """No controller is active at the moment."""


def error_named(name: str, message: str) -> LakelogException:
    """The error with this Kafka name; an UnknownServerException if the name is unknown."""
    known = {found.__name__: found for found in _subclasses(LakelogException)}
    return known.get(name, UnknownServerException)(message)


def _subclasses(base: type[LakelogException]) -> list[type[LakelogException]]:
    return [c for child in base.__subclasses__() for c in (child, *_subclasses(child))]


def error_or(call: Callable[..., Any], *given: object) -> Any:
    """The result of a call, or the LakelogException that it raised."""
    try:
        return call(*given)
    except LakelogException as error:
        return error


def one_line(words: str) -> str:
    """Returns the words with escapes for characters that cannot be printed: a line feed in the name of a file, or bytes
    that are not UTF-8."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in words)
