"""One word for one thing: checks the glossary of `replication/README.md`, and refuses synonyms of its words."""

import ast
import re
from importlib import import_module

import pytest

from tests.test_house import HOUSE, OURS, Source, no_faults, sources

_SECTION = (HOUSE / "replication" / "README.md").read_text("utf-8").partition("\n## Words\n")[2].partition("\n## ")[0]
GLOSSARY = {
    word.strip(): (meaning.strip(), counterpart.strip(), module)
    for word, meaning, counterpart, module in re.findall(
        r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| `([\w.]+)` \|$", _SECTION, re.M
    )
}

# A regular expression over lines in lower case whose names are split into words, and what to say. In pieces, so that
# this file does not hold them.
SYNONYMS = {
    "(?<!power )(?<!power is )c"
    + "uts?(?! power| short)|c"
    + "utting": "truncate (the end of a log), split (files, rows)",
    "epoch (hist" + "ory|histories|list)": "lineage",
    "leadership ep" + "ochs?|leader ter" + "ms?": "leader epoch",
    "(?<!high )(?<!low )water" + "marks?": "high watermark (HW)",
    "in sync (se" + "t|list)|sync (se" + "t|list)": "in-sync replicas (ISR)",
    "log ti" + "ps?|log he" + "ads?": "log end offset (LEO)",
    "change bat" + "ch(es)?|batch of dec" + "isions": "decision",
    "ver" + "dicts?": "outcome",
    "keep ch" + "eap": "maintain",
    "shar" + "ds?": "topic-partition",
    "sla" + "ves?|second" + "ar(y|ies)": "follower",
    "pri" + "mary (replica|broker)": "leader",
    "wit" + "ness(es)?": "history checker",
    "(each|first|last|next|second) lo" + "oks?(?! ups?| at| for)": "poll (a repeated read), or read",
    "off" + "ices?": "term (of a controller), or lease",
    "(?<!fuel )ga" + "te (of|that|watch)|[a-z]+ed ga" + "te": "pause point",
}


_ANY = re.compile(rf"\b(?:{'|'.join(SYNONYMS)})\b")  # asked first: hardly any line has one
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[^A-Za-z _-]")


def words_of(line: str) -> str:
    """The words of a line in lower case: `LogEndOffset`, `log_end_offset` and "log end offset" are the same."""
    return " ".join(_WORDS.findall(line)).lower()


def synonyms(path: str, text: str):
    for number, line in enumerate(text.splitlines(), 1):
        words = words_of(line)
        for pattern, instead in SYNONYMS.items() if _ANY.search(words) else ():
            for found in re.finditer(rf"\b(?:{pattern})\b", words):
                yield f"{path}:{number}: {found[0]!r}: say {instead}"


def pairs_called_partition(source):
    """`partition` is a number everywhere; a field with the topic's id in it is `topic_id_partition`."""
    for owner in ast.walk(source.tree) if "partition:" in source.text else ():
        for field in owner.body if isinstance(owner, ast.ClassDef) else ():
            is_field = isinstance(field, ast.AnnAssign) and ast.unparse(field.target) == "partition"
            if is_field and "int" not in ast.unparse(field.annotation):
                yield source.at(field.lineno, f"{owner.name}.partition is a {ast.unparse(field.annotation)}")


def texts():
    """Everything that people read here, but this file."""
    pages = [path.relative_to(HOUSE).as_posix() for path in HOUSE.glob("*.md")]
    pages += [path.relative_to(HOUSE).as_posix() for folder in OURS for path in (HOUSE / folder).rglob("*.md")]
    shipped = [*pages, "conf/server.properties"]
    yield from ((path, (HOUSE / path).read_text("utf-8")) for path in shipped)
    yield from ((source.path, source.text) for source in sources(*OURS))


def test_no_synonyms():
    no_faults(fault for path, text in texts() for fault in synonyms(path, text))


def test_a_partition_is_a_number():
    no_faults(fault for source in sources(*OURS[:-1]) for fault in pairs_called_partition(source))
    assert list(pairs_called_partition(Source("x.py", "class A:\n    partition: TopicIdPartition")))


def test_the_glossary_is_short_and_every_line_of_it_is_read():
    lines = [line for line in _SECTION.splitlines() if line.startswith("| ") and not line.startswith("| word |")]
    assert 20 <= len(lines) == len(GLOSSARY) <= 32


@pytest.mark.parametrize(("word", "entry"), GLOSSARY.items(), ids=GLOSSARY.keys())
def test_a_word_has_one_plain_sentence_and_a_module(word, entry):
    meaning, _, module = entry
    import_module(f"lakelog.replication.{module}")
    assert re.fullmatch(r"[A-Z][^.]+\.", meaning), f"{word}: one sentence: {meaning}"


@pytest.mark.parametrize(
    "line",
    [
        "class EpochHis" + "tory:",
        "def keep_ch" + "eap(self):",
        "def c" + "ut_logs(log):",
        "class C" + "ut(NamedTuple):",
        "the water" + "mark rises",
        "a sha" + "rd of the topic",
        "_VERD" + "ICT = 1",
        "the ga" + "te that it watches",
        "at the next lo" + "ok",
        "a controller in off" + "ice",
    ],
)
def test_a_synonym_is_seen(line):
    assert list(synonyms("x.py", line))


@pytest.mark.parametrize(
    "line",
    [
        "a power cut",
        "cut_power",
        "executor",
        "high_watermark",
        "HighWatermark",
        "the low watermark",
        "unclean elections",
        "the next look-up",
    ],
)
def test_a_word_of_the_field_is_not_a_fault(line):
    assert not list(synonyms("x.py", line))
