"""All commands by topic. Each names the function behind it, which is imported when it is needed."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple


class Command(NamedTuple):
    """A line of the overview that `saccade` alone prints."""

    place: str
    """Module of saccade.cli, and function."""
    about: str
    example: str

    @property
    def function(self) -> Callable[..., Any]:
        module, _, name = self.place.partition(":")
        return getattr(import_module(f"saccade.cli.{module}"), name)


TOPICS: dict[str, dict[str, Command]] = {
    "look": {
        "list": Command("look:list_models", "models with their size and cost", "list nano"),
        "show": Command("look:show", "one model, stage by stage", "show linglo_b0"),
        "paper": Command("paper:paper", "a paper's numbers beside the code's", "paper qna"),
        "view": Command("see:view", "where a model looks in a picture", "view cat.jpg"),
        "serve": Command("serve:serve", "the same on a page in your browser", "serve"),
        "tour": Command("look:tour", "show, paper and view in turn", "tour"),
    },
    "train": {
        "recipes": Command("learn:recipes", "ways to train, or one in full", "recipes quick"),
        "train": Command("learn:train", "train a model by a recipe", "train quick --epochs 3"),
        "resume": Command("learn:resume", "go on with a stopped run", "resume runs/quick"),
        "report": Command("learn:report", "curves of a run, or runs compared", "report runs/*"),
        "study": Command("study:study", "a paper's tables at small scale", "study linglo"),
        "convert": Command("convert:convert", "VOC or YOLO boxes to COCO", "convert VOC2007 cells"),
    },
    "use": {
        "predict": Command("predict:predict", "name what is in pictures", "predict photos/"),
        "detect": Command("detect:detect", "find objects: boxes", "detect photos/"),
        "segment": Command("segment:segment", "class every pixel: masks", "segment photos/"),
        "upscale": Command("upscale:upscale", "enlarge pictures", "upscale photos/"),
    },
    "ship": {
        "export": Command("ship:export", "ONNX, torch program, or the hub", "export runs/quick"),
    },
    "measure": {
        "eval": Command("learn:evaluate", "a trained model's figures on a set", "eval runs/quick"),
        "bench": Command("measure:bench", "speed and memory, side by side", "bench qna conv"),
    },
    "help": {
        "help": Command("pages:help_page", "this page, or a command's own", "help train"),
        "completion": Command("complete:completion", "let your shell complete words",
                              "completion bash"),
    },
}  # fmt: skip
COMMANDS = {name: command for topic in TOPICS.values() for name, command in topic.items()}
