"""Files of a stranger: pickles, links, names of hubs. No code runs, nothing is fetched."""

import contextlib
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

from timm.models import save_for_hf

import saccade
from saccade.engine.run import Run
from saccade.models.saved import CARD
from saccade.recipes.recipe import change
from tests.attack import evil_contents
from tests.engine.classify_runs import PLAIN, folder
from tests.engine.old_checkpoints import indexed_as
from tests.test_attack import CLASSES, FILES, commands
from tools.campaign.checkpoints import in_this_process
from tools.campaign.guard import guarded
from tools.campaign.verdict import Finding, Outcome, attempted

NAMES = (
    "hf-hub:stranger/model", "hf_hub:stranger/model", "local-dir:{place}", "timm/resnet18.a1_in1k",
    "http://127.0.0.1:9/model", "https://stranger.example/model", "file://{place}/secret",
    "../secret", "{place}/secret", "os.system", "torch.hub.load", "$(touch {place}/marker)",
    "; touch {place}/marker", "__import__('os').system('touch {place}/marker')",
)  # fmt: skip
KEYS = (
    "name", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path",
    "cache_dir", "kind", "weights", "backbone", "settings", "features_only", "norm_layer",
    "act_layer", "url",
)  # fmt: skip
ODD = (0, -1, 3, 10**9, 1e308, True, None, "", "\x1b[2J", "avg", [], [[]], [1, 2, 3], {}, {"0": 1})
INSIDE = ("url", "file", "hf_hub_id", "state_dict", "custom_load", "architecture", "source")


SHORT = change(PLAIN, schedule__epochs=1)


class Payloads:
    """A run's folder, a model's file or a data set that somebody sent."""

    def __init__(self, place: Path):
        self.place = place
        self.data = folder(place / "data", train=3, val=1)
        self.net = net = saccade.build("qna_nano", num_classes=3)
        saccade.save(net, place / "model.safetensors", classes=list(CLASSES), test={"size": 32})
        self.model = (place / "model.safetensors").read_bytes()

    def close(self) -> None:
        return

    def trial(self, chance: random.Random, folder: Path) -> Outcome:
        acts = self.pickles, self.header, self.link, self.set, self.card
        act = chance.choices(acts, (3, 4, 2, 2, 2))[0]
        marker = folder / "marker"
        (folder / "secret").write_text("secret 4711")
        with guarded():
            outcome = act(chance, folder)
        if marker.exists():
            raise Finding(f"code ran: {outcome.what}")
        if "4711" in outcome.what:
            raise Finding(f"a file outside was shown: {outcome.what}")
        if (folder / "secret").read_text() != "secret 4711":
            raise Finding(f"a file outside was written: {outcome.what}")
        return outcome

    def begun(self, folder: Path) -> Path:
        run = folder / "run"
        Run.create(run, "quick", SHORT, str(self.data), CLASSES)
        (run / "model.safetensors").write_bytes(self.model)
        (run / "checkpoints").mkdir()
        return run

    def asked(self, chance: random.Random, run: Path, folder: Path, cheap: bool = False) -> Outcome:
        """One of the commands that read a run."""
        every = commands(run, self.data, folder / "out")
        names = [n for n in every if n != "export" and not (cheap and n.startswith("start"))]
        name = chance.choice(names)
        code, message = in_this_process(every[name])
        return Outcome(code != 0, f"{name}: {message}")

    def pickles(self, chance: random.Random, folder: Path) -> Outcome:
        """Some files of a run, or all, are pickles, with an index that fits or without."""
        contents = evil_contents(folder / "marker")
        run = self.begun(folder)
        for name in FILES if chance.random() < 0.2 else chance.sample(FILES, chance.randint(1, 4)):
            (run / name).parent.mkdir(parents=True, exist_ok=True)
            (run / name).write_bytes(contents[chance.choice(list(contents))])
        steps = [path for path in (run / "checkpoints").glob("step-*") if "part" not in path.name]
        if steps and chance.random() < 0.5:
            path = chance.choice(steps)
            with contextlib.suppress(ValueError):
                indexed_as(path, int(path.name[5:14]))
        return self.asked(chance, run, folder)

    def header(self, chance: random.Random, folder: Path) -> Outcome:
        """A model's file, or a recipe, whose words ask for more."""
        word: Any = chance.choice(NAMES).format(place=folder)
        if chance.random() < 0.4:
            word = {chance.choice(INSIDE): word}
        key = chance.choice(KEYS)
        length = int.from_bytes(self.model[:8], "little")
        head = json.loads(self.model[8 : 8 + length])
        about = json.loads(head["__metadata__"]["saccade"])
        about["model"][key] = word
        if chance.random() < 0.3:
            about["notes"]["task"] = {"kind": word}
        head["__metadata__"]["saccade"] = json.dumps(about)
        text = json.dumps(head).encode()
        text += b" " * (-len(text) % 8)
        content = len(text).to_bytes(8, "little") + text + self.model[8 + length :]
        if chance.random() < 0.5:
            (folder / "m.safetensors").write_bytes(content)
            _, sentence = attempted(lambda: saccade.load(folder / "m.safetensors"))
            return Outcome(sentence is not None, f"{key}={word}: {sentence}")
        run = self.begun(folder)
        if chance.random() < 0.5:
            (run / "model.safetensors").write_bytes(content)
        else:
            plain = json.loads((run / "recipe.json").read_text())
            place = chance.choice(("name", "start", "options"))
            plain["recipe"]["model"][place] = {key: word} if place == "options" else word
            (run / "recipe.json").write_text(json.dumps(plain))
        return self.asked(chance, run, folder, cheap=True)

    def card(self, chance: random.Random, folder: Path) -> Outcome:
        """A folder of the hub, whose config asks for more or for what makes no sense."""
        hub = folder / "hub"
        config = {"label_names": list(CLASSES), "input_size": [3, 32, 32]}
        save_for_hf(self.net, str(hub), config, safe_serialization=True)
        config = json.loads((hub / "config.json").read_text())
        groups = config, config["pretrained_cfg"], config.setdefault("model_args", {})
        for _ in range(chance.randint(1, 3)):
            group = chance.choice(groups)
            odd = chance.choice((chance.choice(NAMES).format(place=folder), *ODD))
            key = chance.choice((*KEYS, *INSIDE, *CARD, *group))
            group[key] = {chance.choice(INSIDE): odd} if chance.random() < 0.2 else odd
        (hub / "config.json").write_text(json.dumps(config))
        if chance.random() < 0.1:
            (hub / "config.json").unlink()
            (hub / "config.json").symlink_to(chance.choice((folder / "secret", "/dev/zero")))
        picture = str(self.data / "val" / "red" / "0.png")
        code, message = in_this_process(
            ["predict", picture, "--model", str(hub), "--device", "cpu"]
        )
        return Outcome(code != 0, message)

    def link(self, chance: random.Random, folder: Path) -> Outcome:
        """A file of the run, or its checkpoints, is a link to somebody's."""
        run = self.begun(folder)
        if chance.random() < 0.2:
            shutil.rmtree(run / "checkpoints")
            (run / "checkpoints").symlink_to(folder)
        else:
            for name in chance.sample(FILES, chance.randint(1, 3)):
                if name in ("recipe.json", "model.safetensors"):
                    continue
                (run / name).parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileExistsError):
                    (run / name).symlink_to(folder / "secret")
        return self.asked(chance, run, folder)

    def set(self, chance: random.Random, folder: Path) -> Outcome:
        """A data set with links, devices, pickles and programs where pictures should be."""
        data = folder / "set"
        shutil.copytree(self.data, data)
        contents = evil_contents(folder / "marker")
        for _ in range(chance.randint(1, 3)):
            path = data / chance.choice(("train", "val")) / "red" / f"{chance.randrange(99)}.png"
            with contextlib.suppress(FileExistsError):
                act = chance.randrange(4)
                if act == 0:
                    path.write_bytes(contents[chance.choice(list(contents))])
                elif act == 1:
                    os.mkfifo(path)
                elif act == 2:
                    path.symlink_to(chance.choice((folder / "secret", data, "/dev/zero")))
                else:
                    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n(%pipe%touch x) (w) file\n")
        (folder / "m.safetensors").write_bytes(self.model)
        words = ["eval", str(folder / "m.safetensors"), "--data", str(data), "--device", "cpu"]
        code, message = in_this_process(words)
        return Outcome(code != 0, message)
