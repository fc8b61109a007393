"""Odd words after --set, odd recipes on disk, odd headers of model files."""

import json
import random
from pathlib import Path
from typing import Any

import saccade
from saccade.engine import make
from saccade.engine.run import Run
from saccade.recipes import book
from saccade.recipes.disk import from_plain, to_plain
from saccade.recipes.recipe import override
from tests.engine.classify_runs import PLAIN, same
from tools.campaign.guard import guarded
from tools.campaign.odd import TEXTS, changed, changed_bytes, places
from tools.campaign.verdict import Finding, Outcome, attempted

# Of these, any value that is taken can be built at once, whatever it is.
BUILT = ("model.drop_path", "model.options", "task", "optim", "schedule.shape", "schedule.warmup",
         "schedule.end", "schedule.power", "loop.ema")  # fmt: skip


class Words:
    """Overrides, `recipe.json` and headers, in this process."""

    def __init__(self, place: Path):
        self.keys = {
            name: [
                ".".join(way)
                for way in places(to_plain(recipe))
                if way and way[-1] != "kind" and all(isinstance(key, str) for key in way)
            ]
            for name, recipe in book.RECIPES.items()
        }
        net = saccade.build("qna_nano", num_classes=3)
        self.file = saccade.save(net, place / "model.safetensors", classes=["a", "b", "c"])
        self.content = self.file.read_bytes()
        self.tensors = {name: t.clone() for name, t in net.state_dict().items()}

    def close(self) -> None:
        return

    def trial(self, chance: random.Random, folder: Path) -> Outcome:
        act = chance.choices((self.words, self.built, self.recipe, self.header), (90, 1, 8, 1))[0]
        with guarded():
            return act(chance, folder)

    def drawn(self, chance: random.Random, keys: list[str]) -> str:
        """One word: a key that there is, or nearly, and a value that fits, or not."""
        key = chance.choice(keys)
        if chance.random() < 0.1:
            key = changed_bytes(key.encode(), chance).decode(errors="surrogateescape")
        elif chance.random() < 0.1:
            key += chance.choice((".x", ".", ".name", "..", ".0"))
        draw = chance.random()
        if draw < 0.6:
            text = chance.choice(TEXTS)
        elif draw < 0.75:
            text = str(chance.choice((chance.randrange(-5, 2000), chance.uniform(-2, 2))))
        elif draw < 0.85:
            text = chance.choice(TEXTS) + chance.choice(TEXTS)
        else:
            text = changed_bytes(chance.choice(TEXTS).encode(errors="replace"), chance).decode(
                errors="surrogateescape"
            )
        return f"{key}={text}" if chance.random() > 0.02 else key

    def words(self, chance: random.Random, folder: Path) -> Outcome:
        name = chance.choice(list(book.RECIPES))
        words = [self.drawn(chance, self.keys[name]) for _ in range(chance.choice((1, 1, 1, 2, 4)))]
        recipe, sentence = attempted(lambda: override(book.find(name), words))
        if sentence is not None:
            return Outcome(True, f"{words}: {sentence}")
        come_back(recipe, words)
        return Outcome(False, f"{words}")

    def built(self, chance: random.Random, folder: Path) -> Outcome:
        """A recipe that is taken, and its task, which must be made or refused."""
        keys = [key for key in self.keys["quick"] if key.startswith(BUILT)]
        keys += [f"model.options.{key}" for key in ("global_pool", "drop_path_rate", "in_chans",
                 "features_only", "checkpoint_path", "pretrained_cfg", "num_classes")]  # fmt: skip
        words = [self.drawn(chance, keys)]

        def act() -> Any:
            recipe = override(PLAIN, words)
            come_back(recipe, words)
            return make.task(recipe, ("a", "b", "c"))

        _, sentence = attempted(act)
        return Outcome(sentence is not None, f"built {words}: {sentence}")

    def recipe(self, chance: random.Random, folder: Path) -> Outcome:
        plain = {
            "name": "x", "data": "y", "classes": ["a", "b"],
            "recipe": to_plain(book.find(chance.choice(list(book.RECIPES)))),
        }  # fmt: skip
        for _ in range(chance.choice((1, 1, 2))):
            plain = changed(plain, chance)
        text = json.dumps(plain).encode()
        if chance.random() < 0.2:
            text = changed_bytes(text, chance)
        (folder / "recipe.json").write_bytes(text)
        run, sentence = attempted(lambda: Run.open(folder))
        if sentence is not None:
            return Outcome(True, f"recipe: {sentence}")
        come_back(run.recipe, ["recipe.json"])
        return Outcome(False, "recipe")

    def header(self, chance: random.Random, folder: Path) -> Outcome:
        length = int.from_bytes(self.content[:8], "little")
        head = json.loads(self.content[8 : 8 + length])
        about = changed(json.loads(head["__metadata__"]["saccade"]), chance)
        if isinstance(about, dict) and isinstance(about.get("model"), dict):
            hidden = ("checkpoint_path", "pretrained", "pretrained_cfg_overlay", "scriptable",
                      "cache_dir", "features_only", "exportable", "kind", "name", "depths",
                      "widths", "heads", "window", "in_chans", "num_classes")  # fmt: skip
            value = changed([0], chance)
            about["model"][chance.choice(hidden)] = value[0] if isinstance(value, list) and (
                value) else value  # fmt: skip
        text = json.dumps(about)
        if chance.random() < 0.2:
            text = changed_bytes(text.encode(), chance).decode(errors="replace")
        head["__metadata__"]["saccade"] = text
        encoded = json.dumps(head).encode()
        encoded += b" " * (-len(encoded) % 8)
        path = folder / "model.safetensors"
        path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + self.content[8 + length :])
        net, sentence = attempted(lambda: saccade.load(path))
        if sentence is not None:
            return Outcome(True, f"header: {sentence}")
        place = same(self.tensors, dict(net.state_dict()))
        if place is not None:
            raise Finding(f"header {text}: another weight at {place}")
        return Outcome(False, f"header {text}")


def come_back(recipe: Any, words: list[str]) -> None:
    """A recipe that was taken can be written, and is the same when it is read."""
    plain = to_plain(recipe)
    again = to_plain(from_plain(json.loads(json.dumps(plain))))
    if repr(plain) != repr(again):
        raise Finding(f"{words}: {plain} is read as {again}")
