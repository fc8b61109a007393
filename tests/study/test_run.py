"""A grid is trained, skipped where it is done, taken up where it stopped, and written as a page."""

import json

import pytest

from saccade.engine import lock
from saccade.engine.watch import Silent
from saccade.study import page, run
from tests.study import tiny

KEYS = ["base", "position=cpe"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A tiny study that was trained with seed 0 to the end, and the sentences said."""
    base = tmp_path_factory.mktemp("study")
    data, messages = tiny.write_cifar(base / "cifar"), []
    run.train(tiny.study(), data, base / "runs", (0,), say=messages.append)
    return data, base / "runs", messages


def test_every_row_is_trained_and_what_is_done_is_skipped(trained):
    data, out, messages = trained
    assert [line.split(" ->")[0] for line in messages] == [f"tiny: {key}, seed 0" for key in KEYS]
    again = []
    assert run.train(tiny.study(), data, out, (0,), say=again.append) == []
    assert again == []
    assert [(key, seed) for key, seed, _ in run.missing(tiny.study(), out, (0, 1))] == [
        (key, 1) for key in KEYS
    ]


def test_a_run_that_was_broken_off_goes_on(trained, tmp_path):
    data, _, _ = trained
    study = tiny.study()

    class Watch(Silent):
        def __enter__(self):
            return self

        def __exit__(self, *_): ...

        def stepped(self, step, terms, rate, images):
            if step == 3:  # after the first epoch's checkpoint
                raise InterruptedError

    with pytest.raises(InterruptedError):
        run.train(study, data, tmp_path, (0,), watch=Watch)
    folder = run.folder_of(tmp_path, "base", 0)
    assert len((folder / "report.jsonl").read_text().splitlines()) == 1
    run.train(study, data, tmp_path, (0,))
    assert run.folder_of(tmp_path, "position=cpe", 0).is_dir()
    lines = [json.loads(line) for line in (folder / "report.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]


def test_runs_of_another_process_are_left_to_it(trained, tmp_path):
    data, _, _ = trained
    with lock.hold(run.folder_of(tmp_path, "base", 0)):
        elsewhere = run.train(tiny.study(epochs=1), data, tmp_path, (0,))
    assert elsewhere == [str(run.folder_of(tmp_path, "base", 0))]
    assert run.folder_of(tmp_path, "position=cpe", 0).joinpath("report.jsonl").is_file()


def test_earlier_results_count_as_trained_if_their_recipe_is_the_same(trained, tmp_path):
    data, out, _ = trained
    study = tiny.study()
    before = run.collected(study, data, out, (0,))
    left = [(key, seed) for key, seed, _ in run.missing(study, tmp_path, (0, 1), before)]
    assert left == [(key, 1) for key in KEYS]
    assert run.collected(study, data, tmp_path, (0, 1), before) == before
    other = tiny.study(epochs=3)
    assert len(list(run.missing(other, tmp_path, (0,), before))) == len(KEYS)
    assert run.collected(other, data, tmp_path, (0,), before).settings == {}


def test_runs_of_another_recipe_are_refused(trained):
    data, out, _ = trained
    with pytest.raises(ValueError, match=r"another recipe \(schedule\.epochs\); remove it"):
        run.train(tiny.study(epochs=3), data, out, (0,))


def test_the_page_says_what_was_run_and_what_was_not(trained, tmp_path):
    data, out, _ = trained
    study = tiny.study()
    result = run.collected(study, data, out, (0, 1))
    files = page.write(study, result, tmp_path / "pages")
    assert [path.name for path in files] == ["tiny.md", "tiny-table6.png"]
    text = files[0].read_text()
    assert "| norms |" in text
    assert "undecided" in text  # one seed decides nothing
    assert "50% is learnt from" in text
    assert "2 of 2 settings, 2 runs" in text
    fewer = type(result)(result.figure, result.data, "", {"base": result.settings["base"]})
    assert "| none |  | not run |" in page.markdown(study, fewer, {})
