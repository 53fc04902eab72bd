"""What is read of a staged batch that another version has written."""

import json
from dataclasses import replace

import pytest

from lakelog.replication.errors import InconsistentClusterIdException
from lakelog.replication.storage.staged_batch import StagedBatch, batch_bytes, batch_of

BATCH = StagedBatch(7, 5, (), {"t": {0: 3}}, {"t": {0: 4}}, {1: (5, 9)})


def test_a_batch_that_a_newer_version_has_staged_is_refused_in_one_sentence():
    content = batch_bytes(BATCH)
    assert batch_of(content) == BATCH
    with pytest.raises(InconsistentClusterIdException) as refused:
        batch_of(content.replace(b"staged_batch.v1", b"staged_batch.v2"))
    assert str(refused.value) == (
        "the stage of the query has a batch in format 'lakelog.staged_batch.v2', this version of Lakelog knows "
        "'lakelog.staged_batch.v1': go on with the version that has staged it"
    )


def test_what_is_torn_is_of_no_version():
    for end in (0, 5, 22, 40):
        with pytest.raises(ValueError, match=r".+"):
            batch_of(batch_bytes(BATCH)[:end])


def test_a_batch_of_a_version_that_knows_no_copies_has_no_origin():
    content = batch_bytes(BATCH)
    head = json.loads(content[31:])
    del head["origin"]
    older = json.dumps(head).encode()
    assert batch_of(content[:23] + len(older).to_bytes(8, "big") + older) == replace(BATCH, origin={})
