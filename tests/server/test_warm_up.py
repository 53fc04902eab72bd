"""A broker's Spark has planned a fetch before anybody waits for one."""

from replication.frames.fetch_plan import APPEND
from replication.server.warm_up import warm_up


def test_the_plan_is_one_that_a_follower_would_carry_out(spark):
    assert warm_up(spark).select(["action", "base_offset"]).to_pylist() == [{"action": APPEND, "base_offset": 0}]
