from saccade.data.findings import no_files, note, sentences_about


def test_a_sentence_a_kind():
    findings = {}
    note(findings, "odd boxes", "a")
    note(findings, "odd boxes", "b")
    note(findings, "lone masks", "c")
    assert sentences_about(findings, "train") == [
        "train: 2 odd boxes, such as a", "train: 1 lone masks, such as c",
    ]  # fmt: skip


def test_what_is_no_file():
    assert no_files([]) == []
    (sentence,) = no_files(["pipe.png", "other.png"])
    assert sentence.startswith("2 entries that are no files: FIFOs")
    assert sentence.endswith("such as 'pipe.png'")


def test_an_example_of_thousands_of_letters_is_cut():
    (sentence,) = sentences_about({"lines that are no numbers": ["9" * 6000]}, "YOLO")
    assert sentence.startswith("YOLO: 1 lines that are no numbers, such as 999")
    assert len(sentence) < 400
