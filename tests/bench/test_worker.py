"""The process that runs a model in one way: answers in lines, and no torch beside a runtime."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, save

from saccade.bench import worker

BASE = {"threads": 1, "half": False, "compiled": False, "kernels": "", "name": "", "size": 8}


def answer_of(settings, lines, tmp_path):
    np.save(tmp_path / "image.npy", np.ones((1, 3, 8, 8), np.float32))
    settings_of_files = {"image": str(tmp_path / "image.npy"), "output": str(tmp_path / "y.npy")}
    (tmp_path / "settings.json").write_text(json.dumps({**BASE, **settings_of_files, **settings}))
    words = [sys.executable, "-X", "importtime", worker.__file__, str(tmp_path / "settings.json")]
    result = subprocess.run(words, input=lines, capture_output=True, text=True)
    return [json.loads(line) for line in result.stdout.splitlines()], result.stderr


def test_it_times_as_often_as_asked_and_imports_no_torch(tmp_path):
    value = helper.make_tensor_value_info
    shape = ["b", 3, "h", "w"]
    node = helper.make_node("Add", ["image", "image"], ["y"])
    graph = helper.make_graph(
        [node], "twice", [value("image", TensorProto.FLOAT, shape)],
        [value("y", TensorProto.FLOAT, shape)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    save(model, tmp_path / "net.onnx")
    settings = {"way": "onnx", "file": str(tmp_path / "net.onnx")}
    (ready, three, one), imported = answer_of(settings, "3\n1\n", tmp_path)
    assert (np.load(ready["output"]) == 2).all()
    assert [len(three["wall"]), len(one["cpu"])] == [3, 1]
    assert min(three["wall"]) > 0
    assert three["bytes"] > 1e7
    assert "onnxruntime" in imported
    assert " torch\n" not in imported


def test_what_goes_wrong_is_its_first_answer(tmp_path):
    settings = {"way": "onnx", "file": str(Path(tmp_path) / "none.onnx")}
    (answer,), _ = answer_of(settings, "3\n", tmp_path)
    assert "none.onnx" in answer["wrong"]
