"""Who may commit the offsets of a group."""

import pytest

from lakelog.replication.errors import IllegalGenerationException, UnknownMemberIdException
from lakelog.replication.protocol.consumer_group import NO_FENCE, check_may_commit, fence_of, generation_of, has_members

FOUR, FOUR_EMPTY = fence_of(4, True), fence_of(4, False)


def test_ap_04_a_fence_is_of_a_generation_and_only_goes_up():
    assert [(generation_of(f), has_members(f)) for f in (NO_FENCE, FOUR_EMPTY, FOUR)] == [
        (0, False), (4, False), (4, True),
    ]  # fmt: skip
    assert NO_FENCE < FOUR_EMPTY < FOUR < fence_of(5, False)


@pytest.mark.parametrize(
    ("fence", "generation", "error"),
    [
        (NO_FENCE, None, None),
        (FOUR_EMPTY, None, None),
        (FOUR, None, UnknownMemberIdException),
        (NO_FENCE, 1, None),
        (FOUR, 3, IllegalGenerationException),
        (FOUR, 4, None),
        (FOUR, 5, None),
        (FOUR_EMPTY, 3, IllegalGenerationException),
    ],
)
def test_ap_04_a_member_of_the_newest_generation_commits_and_others_while_there_is_none(fence, generation, error):
    if error is None:
        check_may_commit(fence, generation, "g")
    else:
        with pytest.raises(error, match="group g"):
            check_may_commit(fence, generation, "g")
