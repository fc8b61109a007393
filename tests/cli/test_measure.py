import pytest


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("bench", "linglo_b9"), "did you mean 'linglo_b0'?"),
        (("bench",), "name some models, or an operator (sasa, qna, linglo)"),
        (("bench", "sasa", "unfld"), "no peer named 'unfld'; did you mean 'unfold'?"),
        (("bench", "sasa", "--against", "unfld"), "did you mean 'unfold'?"),
        (("bench", "sasa", "--at", "4,56"), "a shape is batch,side,channels,heads"),
        (("bench", "sasa", "--at", "1,9,9,2"), "heads must divide the channels"),
        (("bench", "sasa", "--window", "4"), "window must be odd"),
        (("bench", "sasa", "--size", "64"), "--size is for models"),
        (("bench", "linglo", "--stride", "2"), "linglo has no stride"),
        (("bench", "linglo_nano", "--window", "7"), "--window is for sasa, qna and linglo"),
        (("bench", "linglo_nano", "--size", "20"), "at least 32x32 pixels"),
        (("bench", "linglo_nano", "--size", "32", "--against", "x"), "'x' is not among"),
        (("bench", "linglo_nano", "--threads", "0"), "--threads must be at least 1, got 0"),
        (("bench", "linglo_nano", "--over", "64"), "--over is two sides or more"),
        (("bench", "linglo_nano", "--over", "64,a"), "--over is two sides or more"),
        (("bench", "linglo_nano", "--over", "64,96", "--size", "64"), "leave --size out"),
        (("bench", "sasa", "--over", "64,96"), "--over is for models"),
        (("bench", "linglo_nano", "--json", "gone/a.jsonl"), "no folder 'gone' to write into"),
    ],
)
def test_what_goes_wrong_is_one_sentence(run, arguments, says):
    code, out = run(*arguments)
    assert code == 1
    assert says in out
    assert "Traceback" not in out


def test_bench(run, tmp_path):
    pytest.importorskip("matplotlib")
    files = "--json", str(tmp_path / "b.jsonl"), "--plot", str(tmp_path / "b.png")
    code, out = run(
        "bench", "linglo_nano", "resnet18", "--size", "32", "--against", "resnet18", *files
    )
    assert code == 0, out
    assert "1 x 32 x 32 pixels: forward, float32, 1 thread(s)" in out
    assert "over those of resnet18" in out
    assert "GFLOP/s in a matrix product" in out
    assert len((tmp_path / "b.jsonl").read_text().splitlines()) == 2
    assert (tmp_path / "b.png").is_file()


def test_bench_over_sizes(run, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    curves = []
    monkeypatch.setattr("saccade.bench.draw_over", lambda runs, *_: curves.append(runs))
    plot = "--rounds", "1", "--plot", str(tmp_path / "b.png")
    code, out = run("bench", "linglo_nano", "resnet18", "--over", "64,32", *plot)
    assert code == 0, out
    assert out.index("1 x 32 x 32 pixels") < out.index("1 x 64 x 64 pixels")
    assert [*curves[0]] == [32, 64]
    assert all(
        [row.name for row in one.rows] == ["linglo_nano", "resnet18"] for one in curves[0].values()
    )


@pytest.mark.slow
def test_bench_an_operator(run):
    small = "--at", "1,9x10,8,2", "--rounds", "1"
    code, out = run("bench", "sasa", "unfold", "conv", "--train", *small, "--window", "3")
    assert code == 0, out
    assert "sasa, 1 x 9 x 10 x 8, 2 heads, window 3: forward and backward" in out
    table = [line.split()[0] for line in out.splitlines() if line.strip()]
    assert [name for name in table if name in ("sasa", "unfold", "conv")] == [
        "sasa", "unfold", "conv",
    ]  # fmt: skip
    code, out = run("bench", "qna", "window", *small, "--layer", "--against", "window")
    assert code == 0, out
    assert "2 heads, layer: forward" in out


def test_bench_can_be_interrupted(run, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("saccade.bench.plain.F.scaled_dot_product_attention", interrupt)
    code, out = run("bench", "sasa", "conv", "global", "--at", "1,9,8,2", "--rounds", "1")
    assert code == 0, out
    assert "conv" in out
    assert "interrupted: figures so far" in out


def test_which_backend_is_one_line(run):
    code, out = run("bench", "--where")
    assert code == 0
    names = [line.split(":")[0] for line in out.splitlines()]
    assert names[:2] == ["cpu", "cuda"]
    assert {"local_attention", "attend", "key_only"} <= set(names[2:])
    assert run("show", "linglo_nano")[1].splitlines()[-1] == out.splitlines()[0]
