"""The views that `lakelog.register_views` makes over the tables of a cluster, and the rows that they are made of."""

from lakelog.schemas.views.cluster_views import (
    BROKER_STATES,
    CONSUMER_GROUPS,
    CONTROLLER_STATE,
    EVENT_HISTORY,
    ISR_HISTORY,
    LAG,
    LEADER_EPOCHS,
    LOG_FILES,
    PARTITIONS,
    REPLICA_STATES,
    TOPIC_STATES,
    View,
)

VIEWS = {
    view.name: view
    for view in (
        PARTITIONS, REPLICA_STATES, BROKER_STATES, EVENT_HISTORY, ISR_HISTORY, LEADER_EPOCHS, LAG, CONSUMER_GROUPS,
        TOPIC_STATES, LOG_FILES, CONTROLLER_STATE,
    )
}  # fmt: skip

__all__ = ["VIEWS", "View"]
