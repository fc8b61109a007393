"""Run folders written by hand, as a training would leave them."""

import json
import math
import random

from saccade.engine.run import Run
from saccade.files import write_json
from saccade.recipes import book
from saccade.recipes.recipe import override

EPOCHS = book.find("quick").schedule.epochs


def written(
    folder, recipe="quick", *, sets=(), name=None, epochs=None, best=90.0, classes=3, data="mnist",
    seed=0, per_epoch=20, figures=None, bad=None, terms=("cross_entropy",), names=None,
):  # fmt: skip
    """A run that did `epochs` of its schedule (all if None) and ended at `best` top-1."""
    chosen = override(book.find(recipe), [*sets, f"loop.seed={seed}"])
    labels = names or [f"class {i}" for i in range(classes)]
    run = Run.create(folder, name or recipe, chosen, data, labels)
    total, draw = chosen.schedule.epochs, random.Random(seed)
    for epoch in range(1, (total if epochs is None else epochs) + 1):
        for i in range(per_epoch):
            step = (epoch - 1) * per_epoch + i + 1
            at = step / (total * per_epoch)
            loss = {t: 2.3 * math.exp(-3 * at) + 0.4 * draw.random() for t in terms}
            rate = 2e-3 * min(at * 6, 0.5 * (1 + math.cos(math.pi * at)))
            run.write({"step": step, "loss": loss, "rate": rate}, "steps.jsonl")
        top1 = best - 40 * math.exp(-4 * epoch / total) + 40 * math.exp(-4)
        val = figures(epoch) if figures else {
            "top1": top1, "top5": min(top1 + 6, 100), "mean_class": top1 - 1,
            "loss": 2.3 * math.exp(-3 * epoch / total) + 0.2, "images": 1000,
        }  # fmt: skip
        run.write(
            {"epoch": epoch, "step": epoch * per_epoch, "seconds": 31.0 * epoch,
             "rate": 1e-3, "val": val, "bad": len(bad or {})}
        )  # fmt: skip
    if len(labels) <= 200:
        matrix = [[80 if i == j else draw.choice((0, 0, 1, 9)) for j in labels] for i in labels]
        write_json(run.folder / "tables.json", {"confusion": matrix, "classes": labels})
    if bad:
        write_json(run.folder / "bad.json", bad)
    return run


def answer(text):
    """The JSON in what a command printed, strictly: no NaN."""

    def refuse(word):
        raise ValueError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)
