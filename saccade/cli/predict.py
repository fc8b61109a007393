"""`predict`: the likeliest classes of pictures."""

from typing import Any

from saccade.cli.command import Count, Device, ModelName, Pictures
from saccade.cli.console import say, show_json
from saccade.cli.unread import Unread

WIDTH = 24  # of a bar


def predict(
    files: Pictures,
    *,
    model: ModelName | None = None,
    top: Count = 5,
    batch: Count = 32,
    json: bool = False,
    device: Device | None = None,
) -> None:
    """Name what is in pictures: the likeliest classes, with bars.

    Examples:
        saccade predict cat.jpg
        saccade predict photos/ "more/*.jpg" --model runs/quick --json
        find . -name "*.png" | saccade predict - --top 1

    Args:
        files: pictures, folders of pictures, patterns in quotes, or - for a list on stdin
        model: a run's folder, a saved model, or the name of one that comes with saccade;
            the newest of runs/ if left out, or else linglo_cifar.cifar10, which knows CIFAR-10's
            classes
        top: how many classes of each
        batch: pictures that go through the model together
        json: print a JSON line a picture
        device: the best there is if left out
    """
    from saccade.cli.learn import newest_or_own
    from saccade.infer.predict import guesses

    unread = Unread(json)
    answers = guesses(files, model or newest_or_own("predict"), top, device, batch)
    for file, answer in unread.pass_over(answers):
        if json:
            show_json({"file": file, "guesses": [guess._asdict() for guess in answer]})
        else:
            _bars(file, answer)
    unread.end()


def _bars(file: str, guesses: list[Any]) -> None:
    from rich.text import Text

    say(file, "bold")
    widest = max(len(guess.label) for guess in guesses)
    for guess in guesses:
        row = f"  {guess.label:{widest}}  {100 * guess.share:5.1f}%  "
        say(Text.assemble(row, ("█" * round(WIDTH * guess.share), "cyan")))
