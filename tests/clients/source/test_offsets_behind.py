"""The progress of a query says how far it is behind."""

import json

import pytest

from lakelog import offsets_behind_latest
from lakelog.replication.clients.source.topic_stream import SourceOffset
from lakelog.replication.protocol.record_batch import TopicPartition


def said(**offsets):
    """An offset as Spark has it in the progress; `t_1` is partition 1 of topic t."""
    places = {TopicPartition(name[0], int(name[2])): offset for name, offset in offsets.items()}
    return json.dumps(SourceOffset("c", {"t": "id"}, places).to_json())


@pytest.mark.parametrize(
    ("end", "latest", "expected"),
    [
        (said(t_0=3, t_1=5), said(t_0=10, t_1=5), [(3.5, 7, 0)]),
        (said(t_0=3), said(t_0=3), [(0, 0, 0)]),
        (said(t_0=3), said(t_0=4, t_1=6), [(3.5, 6, 1)]),  # a partition that is not read yet
        (said(t_0=5), said(t_0=4), [(0, 0, 0)]),  # a new leader that does not know yet what is committed
        (said(t_0=3), None, []),
        (None, said(t_0=3), []),
        (said(), said(), []),
        ('{"logOffset": 4}', '{"logOffset": 9}', []),
        ("7", "9", []),
        ("no JSON", "no JSON", []),
    ],
)
def test_offsets_behind_count_the_committed_records_that_were_not_read(end, latest, expected):
    found = offsets_behind_latest({"sources": [{"endOffset": end, "latestOffset": latest}]})
    names = [f"{kind}OffsetsBehindLatest" for kind in ("avg", "max", "min")]
    assert [tuple(each[name] for name in names) for each in found] == expected


def test_offsets_behind_take_parsed_offsets_and_keep_the_order_of_sources():
    source = {"endOffset": json.loads(said(t_0=1)), "latestOffset": json.loads(said(t_0=2))}
    found = offsets_behind_latest({"sources": [{"endOffset": 1}, source, source]})
    assert [each["maxOffsetsBehindLatest"] for each in found] == [1, 1]


MALFORMED = [
    '{"cluster_id": "c"}', '{"cluster_id": "c", "offsets": 4}', '{"cluster_id": "c", "offsets": {"t": [4]}}',
    '{"cluster_id": "c", "offsets": {"t": {"0": "4"}}}', '{"cluster_id": "c", "offsets": {"t": {"0": null}}}',
    "[" * 100_000, 7,
]  # fmt: skip


@pytest.mark.parametrize("given", MALFORMED)
def test_offsets_behind_leave_out_offsets_of_other_sources(given):
    for source in (
        {"endOffset": given, "latestOffset": said(t_0=4)},
        {"endOffset": said(t_0=4), "latestOffset": given},
    ):
        assert offsets_behind_latest({"sources": [source]}) == []


@pytest.mark.parametrize("sources", [7, None, "text", [None], ["{}"]])
def test_offsets_behind_refuse_a_progress_with_wrong_sources(sources):
    with pytest.raises(TypeError, match=r"^progress has the sources .*; give query.lastProgress, or event.progress"):
        offsets_behind_latest({"sources": sources})


@pytest.mark.parametrize("progress", [object(), "{}", [{"sources": []}]])
def test_offsets_behind_refuse_an_argument_that_is_no_progress(progress):
    with pytest.raises(TypeError, match=r"^progress is a (object|str|list); give query.lastProgress, or event"):
        offsets_behind_latest(progress)


@pytest.mark.parametrize("progress", [None, {}, {"sources": []}])
def test_offsets_behind_of_a_query_without_a_micro_batch_are_empty(progress):
    assert offsets_behind_latest(progress) == []
