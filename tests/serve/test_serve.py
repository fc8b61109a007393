"""The local page's server: what it tells, what it refuses, and that many may ask at once."""

import asyncio
import base64
import io
import socket
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import saccade
from saccade import cli, serve
from saccade.cli.command import parse
from saccade.cli.serve import serve as command
from saccade.engine import make, session
from saccade.recipes.disk import to_plain
from tests.data.scenes import NAMES
from tests.engine.classify_runs import PLAIN, fit, folder
from tests.engine.dense_runs import SEGMENT
from tests.engine.detect_runs import THINGS

pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")


def letters(image, kind="PNG"):
    content = io.BytesIO()
    image.save(content, kind)
    return content.getvalue()


PHOTO = letters(Image.fromarray(np.random.default_rng(0).integers(0, 255, (48, 70, 3), np.uint8)))


@pytest.fixture(scope="module")
def application(tmp_path_factory):
    place = tmp_path_factory.mktemp("serve")
    run = fit(PLAIN, folder(place / "colours"), place / "run")
    named = map(serve.loaded, ("linglo_nano", "sasa_nano", "linglo_b0", "sasa_nano_conv"))
    return serve.app([serve.loaded(str(run.folder)), *named, "qna_nano.pets37"])


@pytest.fixture
def ask(application):
    """Requests (method, path, content), all at once; gives their answers."""

    def call(*requests, host="localhost"):
        async def all_of_them():
            transport = httpx.ASGITransport(app=application)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
                jobs = [
                    client.request(method, path, content=content, timeout=300)
                    for method, path, content in requests
                ]
                return await asyncio.gather(*jobs)

        return asyncio.run(all_of_them())

    return call


@pytest.fixture
def look(ask):
    return lambda path, *contents: ask(*(("POST", path, content) for content in contents))


def test_the_page_needs_nothing_from_elsewhere(ask):
    (page,) = ask(("GET", "/", b""))
    assert page.status_code == 200
    assert "http://" not in page.text
    assert "https://" not in page.text


def test_the_interface_is_documented(ask):
    page, schema, names, cat, other = ask(
        *(("GET", path, b"") for path in
          ("/docs", "/openapi.json", "/samples", "/samples/cat", "/samples/dog"))
    )  # fmt: skip
    assert "/look" in page.text
    assert "evidence" in page.text
    assert "src=" not in page.text, "nothing is loaded"
    described = schema.json()
    look = described["paths"]["/look"]["post"]
    assert {one["name"] for one in look["parameters"]} == {
        "model", "y", "x", "classes", "evidence",
    }  # fmt: skip
    assert "requestBody" in look
    assert cat.headers["content-type"] == "image/jpeg"
    assert "cat" in names.json()
    assert other.status_code == 404


def test_the_answer_is_as_documented(ask, look):
    (schema,) = ask(("GET", "/openapi.json", b""))
    about = schema.json()["paths"]["/look"]["post"]["responses"]["200"]
    known = about["content"]["application/json"]["schema"]["properties"]
    (answer,) = look("/look?model=1&evidence=1", PHOTO)
    content = answer.json()
    assert set(content) == set(known)
    assert set(content["model"]) <= set(known["model"]["properties"])
    evidence = content["evidence"]
    values = np.frombuffer(base64.b64decode(evidence["maps"]), np.uint8)
    assert len(values) == np.prod(evidence["shape"])
    assert abs(int(values.max()) - 128) == 127 or abs(int(values.min()) - 128) == 127
    (answer,) = look("/look?model=3&evidence=1", PHOTO)
    assert answer.json()["evidence"] is None, "untrained"


@pytest.mark.parametrize("kind", ["segment", "detect"])
def test_boxes_and_regions_are_drawn(tmp_path, kind):
    recipe, classes = (SEGMENT, NAMES) if kind == "segment" else (THINGS, ["disc", "slab"])
    plain = to_plain(recipe)
    path = saccade.save(
        make.model(recipe, len(classes)), tmp_path / "m.safetensors", classes=list(classes),
        task=plain["task"], test=plain["test"],
    )  # fmt: skip
    content = serve.look(serve.loaded(str(path)), Image.new("RGB", (70, 48), "grey"))
    assert content["guesses"] == []
    assert (content["shares"] is None) == (kind == "detect")
    assert (content["boxes"] is None) == (kind == "segment")
    with Image.open(io.BytesIO(base64.b64decode(content["drawn"]))) as drawn:
        assert drawn.width >= 70
    assert bool(content["stages"]) == (kind == "segment"), "the detector's backbone has none"


def test_models_are_told(ask):
    (answer,) = ask(("GET", "/models", b""))
    trained, linglo, sasa, fresh, *_ = answer.json()
    assert trained["trained"]
    assert trained["classes"] == 3
    assert linglo["name"] == "linglo_nano.pets37"
    assert linglo["classes"] == 37
    assert not fresh["trained"]
    assert fresh["parameters"] == sum(p.numel() for p in saccade.build("linglo_b0").parameters())
    assert sasa["milliseconds"] > 0
    assert sasa["macs"] > 1e6


def test_classes_and_maps(look):
    (answer,) = look("/look?model=0", PHOTO)
    reply = answer.json()
    assert [set(g) for g in reply["guesses"]] == [{"label", "share"}] * 3
    assert sum(g["share"] for g in reply["guesses"]) == pytest.approx(1, abs=1e-4)
    for stage in reply["stages"]:
        raw = np.frombuffer(base64.b64decode(stage["maps"]), np.uint8).reshape(stage["shape"])
        assert (raw.max((1, 2)) == 255).all(), "each head from its least to its most"
    (answer,) = look("/look?model=3", PHOTO)
    assert answer.json()["guesses"] == [], "untrained: no classes"


@pytest.mark.parametrize("model", [0, 2])
def test_a_pixel_looks_around_itself(look, model):
    corners = []
    for y, x in ((0, 0), (0.99, 0.99)):
        (answer,) = look(f"/look?model={model}&y={y}&x={x}", PHOTO)
        reply = answer.json()
        stage = reply["stages"][0]
        raw = np.frombuffer(base64.b64decode(stage["maps"]), np.uint8).reshape(stage["shape"])
        rows, columns = np.nonzero(raw[0])
        corners.append((rows.mean() / raw.shape[1], columns.mean() / raw.shape[2]))
    assert max(corners[0]) < 0.4
    assert min(corners[1]) > 0.6


@pytest.mark.parametrize(
    ("path", "content", "code", "message"),
    [
        ("/look?model=0", b"no picture", 415, "no picture"),
        ("/look?model=0", b"", 415, "no picture"),
        ("/look?model=0", PHOTO[: len(PHOTO) // 2], 415, "no readable picture"),
        ("/look?model=0", letters(Image.new("RGB", (1, 1))), 415, "too few"),
        ("/look?model=9", PHOTO, 404, "models 0 to 5"),
        ("/look?model=0", bytes(serve.UPLOAD + 1), 413, "10 MB at most"),
        ("/look?model=0", letters(Image.new("1", (400_000, 2))), 415, "20 times as long as wide"),
        ("/look?model=abc", PHOTO, 422, "model is a number, got 'abc'"),
        ("/look?model=0&y=", PHOTO, 422, "y is a number, got ''"),
    ],
)
def test_what_is_refused(look, path, content, code, message):
    (answer,) = look(path, content)
    assert answer.status_code == code
    assert message in answer.json()["detail"]


def test_a_model_sees_no_more_of_a_long_picture_than_of_a_usual_one():
    for side in (32, 64, 448):
        for size in ((700, 500), (10_000, 500), (2, 40), (40, 2)):
            W, H = serve.fitted(size, side)
            assert 32 <= min(W, H) <= side
            assert max(W, H) <= max(4 * side, 20 * 32)
            assert W / H == pytest.approx(size[0] / size[1], rel=0.05)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (MemoryError(), 413, "more memory than there is"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 413, "more memory than"),
        (RuntimeError("an odd\nthing"), 500, "failed on this picture (RuntimeError: an odd);"),
    ],
)
def test_what_goes_wrong_is_said_in_a_sentence(look, monkeypatch, caplog, error, code, message):
    def wrong(*_):
        raise error

    monkeypatch.setattr("saccade.serve.application.look", wrong)
    (answer,) = look("/look?model=0", PHOTO)
    assert answer.status_code == code
    assert message in answer.json()["detail"]
    assert ("an odd" in caplog.text) == (code == 500), "what nobody expects is logged"


def test_a_model_without_attention_still_knows_classes(look):
    (answer,) = look("/look?model=4&y=.5&x=.5", PHOTO)
    reply = answer.json()
    assert answer.status_code == 200
    assert reply["stages"] == []
    assert reply["at"] is None
    assert "no attention of its family" in reply["what"]
    fresh = serve.loaded("sasa_nano_conv")
    trained = replace(fresh, trained=session.untrained("sasa_nano_conv"))
    reply = serve.look(trained, Image.new("RGB", (70, 48)))
    assert len(reply["guesses"]) == 5
    assert reply["stages"] == []


def test_classes_are_told_when_asked_for(look):
    (answer,) = look("/look?model=0&y=.5&x=.5&classes=0", PHOTO)
    assert answer.json()["guesses"] is None
    assert answer.json()["stages"]


def test_a_model_is_loaded_when_asked_for_and_its_maps_are_named(look, ask):
    (answer,) = look("/look?model=5", PHOTO)
    reply = answer.json()
    assert reply["model"]["name"] == "qna_nano.pets37"
    assert reply["model"]["parameters"] > 0
    (answer,) = ask(("GET", "/models", b""))
    assert answer.json()[5] == reply["model"]
    names = [stage["name"] for stage in reply["stages"]]
    assert names == ["stage 1", "stage 2", "stage 3", "stage 4, down-sampling"]
    for stage in reply["stages"]:
        assert len(stage["labels"]) == stage["shape"][0]
    assert reply["stages"][0]["labels"] == [
        "query 1, head 1", "query 1, head 2", "query 2, head 1", "query 2, head 2",
    ]  # fmt: skip
    assert "checkerboard" in reply["note"]
    (answer,) = look("/look?model=5&y=.5&x=.5", PHOTO)
    assert answer.json()["note"] == "", "the windows of one pixel do not overlap"
    (answer,) = look("/look?model=1", PHOTO)
    assert answer.json()["stages"][-1]["labels"][:2] == ["head 1", "head 2"]
    assert answer.json()["note"] == ""


def test_names_tell_models_apart(tmp_path):
    places = [tmp_path / name for name in ("a/run", "b/run", "b/other")]
    for place in places:
        place.mkdir(parents=True)
    words = [*map(str, places), "linglo_nano", "sasa_nano_conv"]
    assert serve.titles(words) == [
        "a/run", "b/run", "other", "linglo_nano.pets37", "sasa_nano_conv",
    ]  # fmt: skip
    assert serve.titles([str(places[0])] * 2) == ["run", "run"]


def test_a_bomb_is_not_opened(look, monkeypatch):
    monkeypatch.setattr("saccade.serve.application.PIXELS", 100)
    (answer,) = look("/look?model=0", PHOTO)
    assert answer.status_code == 415
    assert "at most 100 are read" in answer.json()["detail"]


def test_another_sites_page_cannot_reach_it(ask):
    for host in ("evil.example", "evil.example:8000", "localhost.evil.example"):
        (answer,) = ask(("GET", "/models", b""), host=host)
        assert answer.status_code == 400
    for host in ("localhost:8000", "127.0.0.1", "[::1]:8123"):
        (answer,) = ask(("GET", "/models", b""), host=host)
        assert answer.status_code == 200


def test_a_hundred_at_once(look):
    answers = look("/look?model=0", *[PHOTO if i % 4 else b"junk" for i in range(100)])
    codes = [answer.status_code for answer in answers]
    assert codes == [200 if i % 4 else 415 for i in range(100)]
    assert len({answer.text for answer in answers if answer.status_code == 200}) == 1


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], []),
        (["--port", "0"], []),
        (["--model", "a"], ["a"]),
        (["--model=a", "--port", "-1"], ["a"]),
        (["--model", "a", "b", "--port", "1"], ["a", "b"]),
        (["--model", "a", "--host", "::1", "--model=b"], ["a", "b"]),
        (["a", "--port=1", "b"], ["a", "b"]),
    ],
)
def test_models_are_given_as_one_likes(words, names):
    typed = parse("serve", command, words)
    assert [*typed.get("models", []), *typed.get("model", [])] == names


@pytest.fixture
def start(monkeypatch, capsys):
    """`saccade serve` that ends once it listens: where, of which models, and what it prints."""
    uvicorn = pytest.importorskip("uvicorn")
    begun = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda _, sockets: begun.append(sockets[0].dup()))
    monkeypatch.setattr(serve, "loaded", lambda name, title="": title)

    def call(*words):
        begun.clear()
        code = 0
        try:
            cli.main(["serve", *words])
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        out = " ".join((captured.out + captured.err).split())
        assert "Traceback" not in out
        for listener in begun:
            with listener:
                return code, out, listener.getsockname()[:2]
        return code, out, None

    return call


def test_it_says_the_port_that_it_took(start):
    for host, spoken in (("127.0.0.1", "localhost"), ("localhost", "localhost"), ("::1", "[::1]")):
        if host == "::1" and not socket.has_dualstack_ipv6():
            continue
        code, out, (_, port) = start("linglo_nano", "--port", "0", "--host", host)
        assert code == 0
        assert port > 0
        assert f"open http://{spoken}:{port} " in out
        assert "anybody" not in out
    _, out, _ = start("linglo_nano", "--port", "0", "--host", "0.0.0.0")
    assert "anybody who reaches this machine" in out


@pytest.mark.parametrize(
    ("words", "message", "unsaid"),
    [
        (["--port", "99999"], "ports are 0 to 65535, got 99999", "Error"),
        (["--port", "-1"], "ports are 0 to 65535, got -1", "Error"),
        (["--host", "no.such.invalid"], "no address of this machine; try --host", "--port"),
        (["--host", "192.0.2.1"], "no address of this machine; try --host", "--port"),
        (["--host", ""], "no address of this machine; try --host", "--port"),
    ],
)
def test_where_it_cannot_listen_is_said(start, words, message, unsaid):
    code, out, listener = start(*words)
    assert (code, listener) == (1, None)
    assert message in out
    assert unsaid not in out


def test_a_port_in_use_is_said(start):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, out, _ = start("--port", str(port), "--model", "linglo_nano")
    assert code == 1
    assert "cannot be listened on" in out
    assert "try --port" in out


def test_what_cannot_be_served_is_said(tmp_path):
    with pytest.raises(ValueError, match="did you mean 'linglo_nano'"):
        serve.loaded("linglo_nan")
    path = saccade.save(saccade.build("qna_nano"), tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="holds no class names"):
        serve.loaded(str(path))


def _look_around(page, settled):
    """Samples, evidence, a map shown large, opacity, the way back from a pixel, a wide screen."""
    page.set_viewport_size({"width": 1600, "height": 900})
    page.locator("#samples button").first.click()
    page.wait_for_function("shot.bytes.name == 'cat.jpg' && !columns.some(me => me.busy)")
    assert settled() == ""
    page.locator("select").first.select_option("1")
    assert settled() == ""
    left, right = (page.locator(name).bounding_box() for name in (".left", "figure >> nth=0"))
    assert right["x"] > left["x"] + left["width"] - 1, "maps lie beside the picture"
    page.locator("#opacity").fill("0")
    pen = "document.querySelector('figure canvas').getContext('2d')"
    grey = f"() => [...{pen}.getImageData(9, 9, 1, 1).data]"
    r, g, b, _ = page.evaluate(grey)
    assert r == g == b, "nothing of the map is left"
    page.locator("#opacity").fill("100")
    assert page.evaluate(grey)[0] != page.evaluate(grey)[2]
    page.locator("[value=evidence]").check()
    assert settled() == ""
    page.wait_for_function("document.querySelectorAll('figure').length == 3")
    page.locator("[value=attention]").check()
    page.locator("figure button").first.focus()
    page.keyboard.press("Enter")
    first = page.locator("#largename").text_content()
    page.keyboard.press("ArrowRight")
    assert page.locator("#largename").text_content() != first
    assert page.locator("#largemap").bounding_box()["width"] > 600
    with page.expect_download() as download:
        page.click("#download")
    assert download.value.suggested_filename.endswith(".png")
    page.keyboard.press("Escape")
    assert page.locator("#large").is_hidden()
    assert page.locator("#whole").is_hidden()
    page.locator(".photo").first.click(position={"x": 50, "y": 50})
    assert settled() == ""
    page.click("#whole")
    assert settled() == ""
    assert page.evaluate("shot.at") is None


@pytest.mark.slow
def test_in_a_browser(application, tmp_path):
    """Drop a picture, compare two models, choose a pixel by keyboard: as a person would."""
    import shutil
    import threading

    import uvicorn

    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(application, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    (tmp_path / "photo.png").write_bytes(PHOTO)
    (tmp_path / "text.png").write_bytes(b"no picture")
    noise = np.random.default_rng(0).integers(0, 255, (2000, 2000, 3), np.uint8)
    (tmp_path / "large.png").write_bytes(letters(Image.fromarray(noise)))
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    try:
        with playwright.sync_playwright() as started:
            browser = started.chromium.launch(executable_path=chromium, args=quiet)
            page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
            errors = []
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(f"http://127.0.0.1:{port}/")
            page.wait_for_selector("select")
            assert page.locator(".photo").is_hidden(), "nothing to focus on an empty page"
            page.set_input_files("#file", tmp_path / "photo.png")
            page.wait_for_selector("figure canvas")
            assert page.locator(".guess").count() == 3
            page.click("#more")
            page.locator("select").nth(1).select_option("2")
            second = page.locator("section").nth(1)
            second.locator("figure").first.wait_for()
            boxes = [second.locator("figure").nth(i).bounding_box() for i in range(2)]
            assert boxes[0]["y"] == boxes[1]["y"], "two heads in a row"
            assert boxes[0]["width"] > 120, "large enough to be read"
            wide = "document.documentElement.scrollWidth <= innerWidth"
            assert page.evaluate(wide), "a phone need not scroll sideways"

            def settled():
                page.wait_for_function("!columns.some(me => me.busy)")
                return page.locator("#said").text_content()

            assert settled() == ""
            requests = []
            page.on("request", lambda request: requests.append(request.url))
            press = "photo => photo.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowUp'}))"
            second.locator(".photo").evaluate(
                f"photo => {{ for (let i = 30; i--;) ({press})(photo) }}"
            )
            assert settled() == ""
            assert len(requests) == 4, "of thirty presses the first and the last, for each model"
            assert all("classes=0" in url for url in requests)
            assert page.locator(".guess").count() == 3 + 5, "classes stay"

            def still_usable():
                with page.expect_response(lambda answer: "y=0.4" in answer.url) as answer:
                    photo = page.locator(".photo").first
                    photo.click(position={"x": 20, "y": 0.45 * photo.bounding_box()["height"]})
                assert answer.value.ok
                assert settled() == ""

            page.route("**/look*", lambda route: route.abort())
            page.set_input_files("#file", tmp_path / "photo.png")
            page.wait_for_function("document.getElementById('said').className == 'bad'")
            assert "does not answer" in settled()
            page.unroute("**/look*")
            still_usable()
            for name, message in (
                ("text.png", "no picture that this"),
                ("large.png", "10 MB at most"),
            ):
                page.set_input_files("#file", tmp_path / name)
                page.wait_for_function("document.getElementById('said').className == 'bad'")
                assert message in settled()
                still_usable()
            page.locator("select").nth(1).select_option("4")
            assert settled() == ""
            assert "no attention" in second.text_content()
            assert second.locator("figure").count() == 0
            page.locator("select").nth(1).select_option("5")
            assert settled() == ""
            assert "4 of 16 heads" in second.text_content()
            page.check("#every")
            assert "query 2, head 1" in second.text_content()
            page.uncheck("#every")
            assert "stage 4, down-sampling" in second.text_content()
            page.route("**/look*", lambda route: route.fulfill(status=500, body="no JSON"))
            page.locator("select").nth(1).select_option("2")
            assert "the server failed (500)" in settled()
            assert second.locator("figure, .guess").count() == 0, "nothing of another model stays"
            page.unroute("**/look*")
            page.click(".close")
            assert page.locator("section").count() == 1
            assert page.locator("#more").is_visible()
            still_usable()
            _look_around(page, settled)
            assert errors == []
            browser.close()
    finally:
        server.should_exit = True
        thread.join()
