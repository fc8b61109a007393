import pytest
import torch
from torch import nn

from saccade.tasks.classify.task import ClassifyTask, DistillTask

CLASSES = ("ant", "bee", "cow")


def net():
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))


def test_the_loss_is_that_of_mixed_smoothed_labels():
    torch.manual_seed(0)
    task, logits = ClassifyTask(net(), CLASSES, smoothing=0.2), torch.randn(4, 3)
    label, other = torch.tensor([0, 1, 2, 0]), torch.tensor([1, 0, 2, 2])
    share = torch.tensor([0.3, 1.0, 0.5, 0.0])
    terms = task.loss({"logits": logits}, {"label": label, "other": other, "share": share})
    expected = 0.0
    for i in range(4):
        target = [0.2 / 3] * 3
        target[label[i]] += 0.8 * share[i].item()
        target[other[i]] += 0.8 * (1 - share[i].item())
        expected -= sum(
            t * p for t, p in zip(target, logits[i].log_softmax(0).tolist(), strict=True)
        )
    assert terms["cross_entropy"].item() == pytest.approx(expected / 4, rel=1e-5)


def test_guesses_come_the_likeliest_first():
    task = ClassifyTask(net(), CLASSES)
    (row,) = task.predict({"logits": torch.tensor([[0.0, 2.0, 1.0]])}, [(8, 8)])
    assert [g.label for g in row] == ["bee", "cow", "ant"]
    assert sum(g.share for g in row) == pytest.approx(1, rel=1e-5)
    assert len(task.predict({"logits": torch.zeros(1, 3)}, most=2)[0]) == 2


def test_a_teacher_is_asked_and_neither_trained_nor_saved():
    teacher = net()
    task = DistillTask(net(), CLASSES, weight=0.5, temperature=2.0)
    with pytest.raises(RuntimeError, match="trains with a teacher"):
        task.prepare(torch.zeros(1, 3, 8, 8), {})
    task.learn_from(teacher)
    assert not any("teacher" in name for name in task.state_dict())
    image, label = torch.randn(2, 3, 8, 8), torch.tensor([0, 1])
    target = task.prepare(image, {"label": label})
    assert not target["teacher"].requires_grad
    terms = task.loss(task(image), target)
    s, t = (x / 2 for x in (task.net(image), teacher(image)))
    gap = (t.softmax(1) * (t.log_softmax(1) - s.log_softmax(1))).sum(1).mean()
    assert terms["teacher"].item() == pytest.approx((0.5 * 4 * gap).item(), rel=1e-4)
    agree = DistillTask(teacher, CLASSES, weight=1.0)
    agree.learn_from(teacher)
    terms = agree.loss(agree(image), agree.prepare(image, {"label": label}))
    assert sum(terms.values()).item() == pytest.approx(0, abs=1e-6)


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="smoothing"):
        ClassifyTask(net(), CLASSES, smoothing=1.0)
    with pytest.raises(ValueError, match="weight"):
        DistillTask(net(), CLASSES, weight=2.0)
