import pytest
import torch
import torch.nn.functional as F

from saccade.tasks.classify.metric import Confusion

CLASSES = tuple("abcdefg")


def batch(n, seed):
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, 7, generator=g)
    return {"logits": logits}, {"label": torch.randint(0, 6, (n,), generator=g)}


def test_figures_equal_plain_counting():
    metric = Confusion(CLASSES)
    batches = [batch(5, 0), batch(3, 1)]
    for output, target in batches:
        metric.update(output, target)
    logits = torch.cat([o["logits"] for o, _ in batches])
    label = torch.cat([t["label"] for _, t in batches])
    figures = metric.compute()
    right = logits.argmax(1) == label
    assert figures["images"] == 8
    assert figures["top1"] == pytest.approx(100 * right.float().mean().item())
    ranks = [(row > row[y]).sum().item() for row, y in zip(logits, label, strict=True)]
    assert figures["top5"] == pytest.approx(100 * sum(r < 5 for r in ranks) / 8)
    assert figures["loss"] == pytest.approx(F.cross_entropy(logits, label).item(), rel=1e-6)
    seen = label.unique()
    classwise = [right[label == c].float().mean().item() for c in seen]
    assert figures["mean_class"] == pytest.approx(100 * sum(classwise) / len(classwise))
    for c in range(7):
        assert sum(metric.tables()["confusion"][c]) == (label == c).sum()


def test_shares_of_processes_add_up_exactly():
    whole, shares = Confusion(CLASSES), [Confusion(CLASSES), Confusion(CLASSES)]
    for i in range(4):
        whole.update(*batch(4, i))
        shares[i % 2].update(*batch(4, i))
    shares[0].add(shares[1].state())
    assert torch.equal(shares[0].matrix, whole.matrix)
    assert shares[0].in_five == whole.in_five
    assert shares[0].compute()["loss"] == pytest.approx(whole.compute()["loss"], rel=1e-12)


def test_nothing_counted_is_said():
    with pytest.raises(ValueError, match="no image was read"):
        Confusion(CLASSES).compute()


def test_the_surest_mistakes_and_the_hardest_images_are_named():
    logits = torch.tensor([[9.0, 0, 0], [0, 5.0, 0], [0, 0, 2.0], [1.0, 0, 0]])
    label = torch.tensor([0, 2, 0, 0])
    parts = [Confusion(("a", "b", "c")) for _ in range(2)]
    for i, part in enumerate(parts):
        own = slice(2 * i, 2 * i + 2)
        index = torch.arange(4)[own]
        part.update({"logits": logits[own]}, {"label": label[own], "index": index})
    whole = Confusion(("a", "b", "c"))
    for part in parts:
        whole.add(part.state())
    examples = whole.tables()["examples"]
    mistakes = examples["Most confident mistakes"]
    assert [row["index"] for row in mistakes] == [1, 2]
    assert mistakes[0]["caption"].startswith("c, taken for b (9")
    hardest = examples["Hardest images"]
    assert [row["index"] for row in hardest] == [1, 2, 3, 0]
    assert "right with" in hardest[-1]["caption"]
