"""A study of two rows and few pictures, so that a run takes a second."""

import numpy as np

from saccade.recipes.recipe import change
from saccade.study.grid import Grid, GridRow, Study
from saccade.study.setting import CIFAR

SMALL = {"widths": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "heads": [1, 1, 1, 1]}


def write_cifar(folder, train=40, test=20):
    """Grey pictures as bright as their class, in CIFAR-10's binary files."""
    folder.mkdir()
    for name, count in (("data_batch_1", train), ("test_batch", test)):
        labels = np.arange(count, dtype=np.uint8)[:, None] % 10
        pixels = np.repeat(25 * labels, 3072, axis=1)
        np.concatenate([labels, pixels], 1).astype(np.uint8).tofile(folder / f"{name}.bin")
    return str(folder)


def study(epochs=2):
    recipe = change(
        CIFAR("linglo_nano"), model__options=SMALL, schedule__epochs=epochs, schedule__warmup=0,
        loop__batch=10, loop__evaluate_every=1, data__share=0.5,
    )  # fmt: skip
    rows = (
        GridRow("norms", {}, (("linglo_b0", "top-1 at 100 epochs"),)),
        GridRow("none", {"model.options.position": "cpe"},
                (("linglo_b0_cpe", "top-1 at 100 epochs"),)),
    )  # fmt: skip
    grid = Grid(where="Table 6", asks="Does it?", rows=rows, note="Tiny.")
    return Study(
        name="tiny", paper="linglo", about="Two rows.", recipe=recipe, data="", grids=(grid,),
        seeds=(0, 1),
    )  # fmt: skip
