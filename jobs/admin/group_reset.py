"""Which offset a reset of a group gives a partition. Kafka: `ConsumerGroupCommand.ConsumerGroupService`."""

from collections.abc import Callable
from typing import TypeAlias

from lakelog.jobs.cli.console import say
from lakelog.replication.clients.led_partition import LedPartition
from lakelog.replication.clients.offset_lookup import EARLIEST, LATEST, offset_for
from lakelog.replication.errors import InvalidRequestException

# The new offset of a partition; the second argument is the committed one, None if there is none.
Rule: TypeAlias = Callable[[LedPartition, int | None], int]


def to_time(time: int) -> Rule:
    """The first record since `time`, in ms since 1970; the high watermark if there is none as late as that."""
    return lambda led, _: _offset(led, max(0, time))


def to_offset(offset: int) -> Rule:
    """This offset, or the nearest one that the log has."""
    return lambda led, _: _within(led, offset)


def shift_by(records: int) -> Rule:
    """So many records after the committed offset, within the log.

    The rule raises InvalidRequestException for a partition without a committed offset.
    """

    def shifted(led: LedPartition, committed: int | None) -> int:
        if committed is None:
            raise InvalidRequestException(
                f"{led.registration.name}: there is no committed offset that --shift-by could start from"
            )
        return _within(led, committed + records)

    return shifted


def _earliest(led: LedPartition, _: int | None) -> int:
    return _offset(led, EARLIEST)


def _latest(led: LedPartition, _: int | None) -> int:
    return _offset(led, LATEST)


def _current(led: LedPartition, committed: int | None) -> int:
    return _latest(led, None) if committed is None else committed


TO_EARLIEST, TO_LATEST, TO_CURRENT = _earliest, _latest, _current


def _offset(led: LedPartition, time: int) -> int:
    found = offset_for(led, time) or offset_for(led, LATEST)
    assert found is not None, "every partition has a high watermark"
    return found.offset


def _within(led: LedPartition, offset: int) -> int:
    """As Kafka's tool does it, with the same words."""
    for bound, is_outside, what in (
        (_earliest(led, None), offset.__lt__, "lower than earliest"),
        (_latest(led, None), offset.__gt__, "higher than latest"),
    ):
        if is_outside(bound):
            say(
                f"lakelog: warning: new offset ({offset}) is {what} offset for topic partition "
                f"{led.registration.name}: it becomes {bound}"
            )
            return bound
    return offset
