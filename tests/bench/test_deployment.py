"""A model in the ways it is deployed: all agree with eager, and what is missing is told."""

import json
import math

import jaxtyping
import pytest

from saccade import bench
from saccade.bench import deployment
from saccade.ops import native

pytestmark = pytest.mark.usefixtures("untyped")  # exporters trace with symbols


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    ways = [way for way in deployment.WAYS if not way.compiled]  # which takes a minute
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deployment, "WAYS", ways)
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        folder = tmp_path_factory.mktemp("deploy")
        return deployment.deploy(["linglo_nano", "resnet10t"], folder, size=64, rounds=2)


@pytest.mark.slow
def test_all_ways_agree_and_are_measured(measured):
    rows = {(row.model, row.way): row for row in measured.rows}
    assert ("linglo_nano", "onnx, our operators") in rows or not native.available()
    for (_, way), row in rows.items():
        exact = "int8" not in way and "bf16" not in way
        assert row.apart < (1e-4 if exact else 1.0)
        assert 0 < row.best <= row.median < 60
        assert row.images == pytest.approx(1 / measured.seconds(row))
        assert row.held > 2e7
        assert (row.file > 0) == ("onnx" in way or "openvino" in way)
    assert measured.left_out["resnet10t, onnx, our operators"] == "it has no operators of ours"
    assert ("linglo_nano", "onnx, int8") in rows, measured.left_out
    small = rows["linglo_nano", "onnx, int8"].file
    assert small < rows["linglo_nano", "onnx"].file


@pytest.mark.slow
def test_it_is_told_drawn_and_kept(measured, tmp_path):
    assert bench.deployment_table(measured).row_count == len(measured.rows)
    assert any("left out: resnet10t" in line for line in bench.deployment_notes(measured))
    bench.append_lines(bench.deployment_lines(measured, what="test"), tmp_path / "rows.json")
    rows = [json.loads(line) for line in (tmp_path / "rows.json").read_text().splitlines()]
    eager = [row["of_eager"] for row in rows if row["way"] == "eager"]
    assert eager == [1, 1]
    bench.draw_deployment(measured, tmp_path / "ways.png", "test")
    assert (tmp_path / "ways.png").stat().st_size > 10_000


def test_a_way_that_does_not_run_is_left_out(monkeypatch, tmp_path):
    def written(name, place, *_):
        (place / "net.onnx").write_bytes(b"no graph")
        return {}

    monkeypatch.setattr(deployment, "_write", written)
    monkeypatch.setattr(deployment, "WAYS", [deployment.Way("onnx", "onnx", "net.onnx")])
    run = deployment.deploy(["linglo_nano"], tmp_path, size=64, rounds=1)
    assert run.rows == []
    assert "linglo_nano, onnx" in run.left_out
    assert "Error" in run.left_out["linglo_nano, onnx"] or ":" in run.left_out["linglo_nano, onnx"]


def test_a_process_that_dies_takes_no_other_with_it(monkeypatch, tmp_path):
    worker = """import json, sys
sys.stdout.write(json.dumps({"output": ""}) + chr(10)); sys.stdout.flush()
for line in sys.stdin:
    if sys.argv[1].endswith("mortal.json"):
        break
    sys.stdout.write(json.dumps({"wall": [2.0], "cpu": [1.0], "bytes": 7}) + chr(10))
    sys.stdout.flush()
"""
    (tmp_path / "worker.py").write_text(worker)
    monkeypatch.setattr(deployment, "__file__", str(tmp_path / "deployment.py"))
    monkeypatch.setattr(deployment, "_write", lambda *_: {})
    ways = [deployment.Way(name, "torch") for name in ("eager", "mortal")]
    monkeypatch.setattr(deployment, "WAYS", ways)
    monkeypatch.setattr(deployment.np, "load", lambda path: deployment.np.ones(1))
    run = deployment.deploy(["net"], tmp_path, size=64, rounds=2)
    assert [row.way for row in run.rows] == ["eager"]
    assert run.rows[0].best == 2.0
    assert run.left_out == {"net, mortal": "its process ended"}


def test_ratios_are_of_the_same_models_eager():
    def row(model, way, seconds):
        return bench.Deployed(model, way, seconds, seconds, seconds / 2, 1, 1, 0, 0.0)

    rows = [row("a", "eager", 4), row("b", "eager", 8), row("b", "onnx", 2)]
    run = bench.Deployment(rows, {}, "cpu")
    assert [run.of_eager(r) for r in rows] == [1, 1, 4]
    assert math.isclose(run.seconds(rows[2]), 1)
