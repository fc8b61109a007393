import pickle
import random

import numpy as np
import torch

from saccade.data import reader
from saccade.data.images import Unreadable
from saccade.data.loader import Loader
from saccade.data.reader import Order, Reader


class Numbers:
    """Image i is i; every third cannot be read."""

    def __len__(self):
        return 12

    def read(self, i):
        if i % 3 == 0:
            raise Unreadable(self.name(i), "a multiple of three")
        return torch.full((3, 1, 1), float(i)), i

    def name(self, i):
        return f"number {i}"


def noted(image, label):
    """What chance held at this image."""
    drawn = random.random(), np.random.rand(), torch.rand(()).item()
    return image, {"label": label, "drawn": torch.tensor(drawn, dtype=torch.float64)}


def order(*indices, epoch=0, step=0, first=0):
    return Order(epoch, step, first, np.array(indices))


def test_chance_is_of_seed_epoch_and_position_alone():
    read = Reader(Numbers(), noted, 5, None, True)
    (whole, _), (later, _) = read(order(1, 2, 4, 5)), read(order(4, 5, first=2))
    assert torch.equal(whole.target["drawn"][2:], later.target["drawn"])
    assert len(whole.target["drawn"].flatten().unique()) == 12
    for other in (
        Reader(Numbers(), noted, 6, None, True)(order(1, 2)),
        read(order(1, 2, epoch=1)),
        read(order(1, 2, first=1)),
    ):
        assert not torch.isin(other[0].target["drawn"][0], whole.target["drawn"][0]).any()


def test_keys_do_not_run_into_each_other():
    keys = [(t, s, e, p) for t in range(3) for s in range(3) for e in range(3) for p in range(3)]
    assert len({reader.chance(*key).integers(2**62) for key in keys}) == len(keys)


def test_another_image_takes_the_place_where_batches_are_whole():
    batch, bad = Reader(Numbers(), noted, 0, None, True)(order(0, 1, 3, 6))
    assert len(batch) == 4
    assert batch.index[1] == 1
    assert (batch.index % 3 != 0).all()
    assert batch.image[:, 0, 0, 0].tolist() == batch.index.tolist()
    assert batch.target["label"].tolist() == batch.index.tolist()
    assert {"number 0", "number 3", "number 6"} <= bad.keys()
    again, _ = Reader(Numbers(), noted, 0, None, True)(order(6, first=3))
    assert again.index[0] == batch.index[3]


def test_it_is_left_out_where_they_are_not():
    read = Reader(Numbers(), noted, 0, None, False)
    batch, bad = read(order(0, 1, 3, 5))
    assert batch.index.tolist() == [1, 5]
    assert bad == {"number 0": "a multiple of three", "number 3": "a multiple of three"}
    assert read(order(0, 3))[0] is None


def test_orders_travel():
    there = pickle.loads(pickle.dumps(order(1, 2, step=3)))
    assert (there.step, there.indices.tolist()) == (3, [1, 2])


def test_targets_of_other_tasks():
    class Boxes:
        def __len__(self):
            return 4

        def read(self, i):
            return torch.full((3, 2, 2), float(i)), torch.full((i, 4), float(i))

        def name(self, i):
            return str(i)

    def transform(image, boxes):
        return image, {"boxes": boxes, "count": len(boxes), "area": 0.5, "name": "x"}

    ((batch,),) = Loader(Boxes(), transform, batch=4, shuffle=False).epoch(0)
    assert batch.image.shape == (4, 3, 2, 2)
    assert [tuple(b.shape) for b in batch.target["boxes"]] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert batch.target["count"].tolist() == [0, 1, 2, 3]
    assert batch.target["area"].dtype == torch.float32
    assert batch.target["name"] == ["x"] * 4
    there = batch.to("meta")
    assert there.image.device.type == there.target["boxes"][1].device.type == "meta"
    assert there.target["name"] == ["x"] * 4


WHERE = torch.zeros(1).long(), torch.full((1, 2), 2)  # index and size


def test_images_of_several_sizes_are_padded_at_the_right_and_below():
    images = [torch.ones(3, 5, 40), torch.ones(3, 33, 7)]
    image, size = reader._padded(images)
    assert image.shape == (2, 3, 64, 64), "multiples of 32"
    assert size.tolist() == [[5, 40], [33, 7]]
    assert image[0, :, :5, :40].eq(1).all()
    assert image[0].sum() == images[0].sum()
    image, size = reader._padded([images[0]] * 3)
    assert image.shape == (3, 3, 5, 40), "as they are"
    assert size.tolist() == [[5, 40]] * 3


def test_without_padding_images_of_one_size_stay_together():
    images = [
        torch.full((3, *size), float(i)) for i, size in enumerate([(5, 40), (33, 7), (5, 40)])
    ]
    image, size = reader._padded(images)
    target = {"id": torch.arange(3), "boxes": [torch.zeros(i, 4) for i in range(3)]}
    wide, tall = reader.Batch(image, target, torch.tensor([7, 8, 9]), size).unpadded()
    assert wide.image.shape == (2, 3, 5, 40)
    assert wide.image.amin((1, 2, 3)).tolist() == wide.target["id"].tolist() == [0, 2]
    assert wide.index.tolist() == [7, 9]
    assert [len(b) for b in wide.target["boxes"]] == [0, 2]
    assert tall.image.shape == (1, 3, 33, 7)
    assert tall.size.tolist() == [[33, 7]]
    (same,) = wide.unpadded()
    assert same is wide


def test_pinning_reaches_every_tensor(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda t: t + 1)
    batch = reader.Batch(torch.zeros(1, 3, 2, 2), {"a": [torch.zeros(2)]}, *WHERE)
    pinned = batch.pin_memory()
    assert (pinned.image.mean(), pinned.target["a"][0].mean(), pinned.index[0]) == (1, 1, 1)


def test_a_batch_survives_the_way_out_of_a_worker():
    target = {"label": torch.arange(2), "boxes": [torch.zeros(0, 4), torch.ones(1, 4)], "name": "x"}
    batch = reader.Batch(
        torch.randn(2, 3, 128, 128), target, torch.tensor([7, 9]), torch.full((2, 2), 128)
    )
    there = pickle.loads(pickle.dumps(batch))
    assert torch.equal(there.image, batch.image)
    assert torch.equal(there.index, batch.index)
    assert torch.equal(there.target["label"], target["label"])
    assert [tuple(t.shape) for t in there.target["boxes"]] == [(0, 4), (1, 4)]
    assert there.target["name"] == "x"
    state = batch.__getstate__()
    assert isinstance(state["image"], torch.Tensor), "large: shared"
    assert isinstance(state["index"], np.ndarray), "small: by value"
