import saccade
from saccade.tasks.classify.task import ClassifyTask


def test_what_layers_declare_is_named_from_the_tasks_root():
    task = ClassifyTask(saccade.build("qna_nano", num_classes=2), ("a", "b"))
    names = task.no_weight_decay()
    assert names
    assert names <= dict(task.named_parameters()).keys()
    assert {name.removeprefix("net.") for name in names} == task.net.no_weight_decay()
