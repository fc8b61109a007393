import io

from rich.console import Console

from saccade.report.progress import Mean, Screen
from tests.report.run_folders import written


def line(epoch, top1):
    val = {"top1": top1, "top5": 99.0, "loss": 0.5, "images": 100}
    return {"epoch": epoch, "step": 10 * epoch, "seconds": 60.0 * epoch, "val": val}


def test_a_row_an_evaluation_under_one_head(tmp_path):
    out = io.StringIO()
    with Screen(Console(file=out, width=80)) as screen:
        screen.began(written(tmp_path, epochs=1), 0, 20)
        for epoch in (1, 2):
            for step in range(10):
                screen.stepped(step, {"a": 1.0, "b": 0.25}, 0.1, 8)
            screen.evaluated(line(epoch, 50.0 + epoch), best=epoch == 2)
        screen.say("a sentence")
    head, first, second, message = out.getvalue().splitlines()
    assert head.split() == ["epoch", "train", "loss", "top1", "top5", "loss", "images/s", "minutes"]
    assert first.split()[:5] == ["1", "1.250", "51.00", "99.00", "0.500"]
    assert second.split()[-1] == "best"
    assert len(head) == len(first) == len(second) - len(" best")
    assert message == "a sentence"


def test_a_mean_of_nothing_is_nothing():
    mean = Mean()
    assert mean.value == 0
    mean.add(6, 3)
    assert mean.value == 2
