"""Sentences are held to the cells that they speak of, and none is missing.

Each sentence is a claim, or sentences.tsv says why not.
"""

import os
import re
from pathlib import Path

import pytest

from saccade.paper import Claim, claims
from saccade.paper.sentences import measure
from tests.paper.test_tables import tables

HERE = Path(__file__).parent
SEEDS = os.environ.get("SACCADE_SEEDS", "")  # a folder with the papers' texts
ELSEWHERE = ("code", "main text")  # of claims that stand in other texts


def listed():
    """(paper, section, first, last, claims with what they say, reason) of the file of sentences."""
    text = "\n".join(
        line
        for line in (HERE / "sentences.tsv").read_text().splitlines()
        if not line.startswith("#")
    )
    for block in text.strip().split("\n\n"):
        family, *lines = block.splitlines()
        for line in lines:
            section, numbers, words, *reason = line.split("\t")
            first, _, last = numbers.partition("-")
            pairs = [] if words == "-" else [word.partition(" = ") for word in words.split("; ")]
            names = {name: set(message.split(" | ")) - {""} for name, _, message in pairs}
            yield family, section, int(first), int(last or first), names, "".join(reason)


SENTENCES = list(listed())


def lengths(family):
    """How many sentences the file has of each section."""
    return {section: last for f, section, _, last, _, _ in SENTENCES if f == family}


def section_of(where):
    """The section that a claim stands in, as the file calls it."""
    return re.sub(r"^[§S](?=\d)", "", where)


def test_a_difference():
    cells = {("a", "AP"): "41.5", ("b", "AP"): "36.7"}

    def printed(name, what):
        return [Claim("Table 3", what, cells[name, what])]

    claim = Claim("§4.2", "AP above b's", "4.8")
    assert measure("a", claim, printed) == pytest.approx(4.8)
    assert claim.holds(measure("a", claim, printed))


def test_sentences_follow_each_other():
    ends = {}
    for family, section, first, last, names, reason in SENTENCES:
        assert first == ends.get((family, section), 0) + 1, (family, section, first)
        assert last >= first
        assert names or reason, (family, section, first)
        ends[family, section] = last


def test_the_files_that_reasons_name_exist():
    root = HERE.parents[1]
    names = {
        n for *_, reason in SENTENCES for n in re.findall(r"(?:tests|docs)/[\w/.-]*\w", reason)
    }
    assert len(names) > 10
    assert [name for name in sorted(names) if not (root / name).exists()] == []


@pytest.mark.parametrize("family", claims.FAMILIES)
def test_what_is_said_to_be_a_claim_is_one(family):
    names = {row.claim.what for row in claims.rows(family)}
    names |= {where for f, where, *_ in tables() if f == family}
    assert [(s, n, w) for f, s, n, _, words, _ in SENTENCES if f == family
            for w in words if w not in names] == []  # fmt: skip


@pytest.mark.parametrize("family", claims.FAMILIES)
def test_every_claim_of_a_text_stands_by_its_sentence(family):
    """In the section that the claim names; so a claim cannot name a section that says no such."""
    printed = {(s, word) for f, s, *_, words, _ in SENTENCES if f == family for word in words}
    pairs = {
        (section_of(row.claim.where), row.claim.what)
        for row in claims.rows(family)
        if not row.is_cell and row.claim.where not in ELSEWHERE
    }
    assert pairs
    assert sorted(pairs - printed) == []


@pytest.mark.parametrize("family", claims.FAMILIES)
def test_claims_say_what_their_sentences_print(family):
    """So that none can be brought to agree with the code by changing what was printed."""
    claimed = {}
    for row in claims.rows(family):
        if not row.is_cell and row.claim.where not in ELSEWHERE:
            key = section_of(row.claim.where), row.claim.what
            claimed.setdefault(key, set()).add(row.claim.said)
    printed = {(s, n): message for f, s, *_, names, _ in SENTENCES if f == family
               for n, message in names.items() if message}  # fmt: skip
    assert printed == claimed


# -- the file beside the papers' texts -------------------------------------------------------------

HEADINGS = {
    "000": r"\*\*(A(?:\.\d)?) [^*]+\*\*$",
    "001": r"#{1,3} (\d(?:\.\d)?)\.? ",
    "002": r"(?!)",
    "003": r"(\d(?:\.\d)?) [A-Z][\w &-]+$",
}
SHORT = re.compile(r"\b(Fig|Figs|Sec|Eq|e\.g|i\.e|w\.r\.t|et al|sz|vs)\.$")


def parted(number):
    """The sentences of a text by section; tables, code and references are left out."""
    (path,) = Path(SEEDS).glob(f"{number}_*.txt")
    text = re.split(r"(?m)^(?:## )?References$", path.read_text())[0]
    section = {"002": "poster"}.get(number, "front")
    sections, paragraph, code = {}, [], False
    for line in [*text.splitlines(), ""]:
        line = line.strip()
        if number == "000":  # lines are numbered
            line = re.sub(r"^\d{3}( |$)", "", line)
        heading = re.match(HEADINGS[number], line)
        code ^= line.startswith("```")
        if line and not heading and not code and "\t" not in line and not line.startswith("```"):
            paragraph.append(line)
            continue
        sections.setdefault(section, []).extend(sentences(" ".join(paragraph)))
        paragraph.clear()
        section = heading[1] if heading else section
    return {section: own for section, own in sections.items() if own}


def sentences(text):
    whole = ""
    for part in re.split(r"(?<=[.?!:])[\"”]?\s+(?=[A-Z“*(\[])", text):
        whole = f"{whole} {part}".strip()
        if SHORT.search(whole):
            continue
        if re.search(r"[A-Za-z]{2}", whole):
            yield whole
        whole = ""


@pytest.mark.skipif(not SEEDS, reason="SACCADE_SEEDS names no folder with the papers' texts")
@pytest.mark.parametrize(
    ("family", "numbers"), [("linglo", ["003"]), ("qna", ["001"]), ("sasa", ["000", "002"])]
)
def test_the_file_of_sentences_is_complete(family, numbers):
    texts = [parted(number) for number in numbers]
    counts = {section: len(own) for text in texts for section, own in text.items()}
    assert counts == lengths(family)


WORDS = {"one": 1, "single": 1, "two": 2, "three": 3, "four": 4, "five": 5}
# Numbers that stand nowhere in their section, and follow from it or from what it names.
DERIVED = {
    ("linglo", "1", "stages with all three properties"),  # "every stage", of four
    ("linglo", "5.3", "branches of RP-CPE"),  # one is left, or none is removed
    ("linglo", "5.4", "first down-sampling"),  # patches side by side have no padding
    ("linglo", "5.4", "other down-sampling"),
    ("linglo", "5.4", "outputs"),  # 224 by the strides
    *(("linglo", "5", what) for what in (  # section 4.1's
        "momentum", "learning rate", "weight decay", "batch", "image side", "centre crop",
    )),
    *(("qna", "2.2", what) for what in (  # of DETR's setting, which it names
        "augmentation", "crop from short side", "sides of the crop",
    )),
    ("sasa", "A.3", "3x3 convolutions above the backbone"),  # all are replaced
    ("sasa", "A.3", "end of a head"),  # a pointwise convolution is 1x1
}  # fmt: skip


def numbers(text):
    text = re.sub(r"(\d),(\d{3})\b", r"\1\2", text).lower()
    digits = {float(n) for n in re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", text)}
    return digits | {n for word, n in WORDS.items() if re.search(rf"\b{word}\b", text)}


@pytest.mark.skipif(not SEEDS, reason="SACCADE_SEEDS names no folder with the papers' texts")
@pytest.mark.parametrize(
    ("family", "texts"), [("linglo", ["003"]), ("qna", ["001"]), ("sasa", ["000", "002"])]
)
def test_numbers_of_claims_stand_in_their_sentences(family, texts):
    parts = {section: own for text in texts for section, own in parted(text).items()}
    missing = set()
    for row in claims.rows(family):
        section, claim = section_of(row.claim.where), row.claim
        if row.is_cell or section in ELSEWHERE:
            continue
        near = " ".join(
            sentence
            for f, s, first, last, words, _ in SENTENCES
            if (f, s) == (family, section) and claim.what in words
            for sentence in parts[s][first - 1 : last]
        )
        if numbers(claim.said) - numbers(near):
            missing.add((family, section, claim.what))
    assert missing == {key for key in DERIVED if key[0] == family}
