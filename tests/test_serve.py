"""The local page's server: what it tells, what it refuses, and that many may ask at once."""

import asyncio
import base64
import io
import socket

import numpy as np
import pytest
from PIL import Image

import saccade
from saccade import cli, serve
from tests.engine.small import PLAIN, fit, folder

pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")


def letters(image, kind="PNG"):
    made = io.BytesIO()
    image.save(made, kind)
    return made.getvalue()


PHOTO = letters(Image.fromarray(np.random.default_rng(0).integers(0, 255, (48, 70, 3), np.uint8)))


@pytest.fixture(scope="module")
def application(tmp_path_factory):
    place = tmp_path_factory.mktemp("serve")
    run = fit(PLAIN, folder(place / "colours"), place / "run")
    named = map(serve.loaded, ("linglo_nano", "sasa_nano", "linglo_b0"))
    return serve.app([serve.loaded(str(run.folder)), *named])


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


def test_models_are_told(ask):
    (answer,) = ask(("GET", "/models", b""))
    trained, linglo, sasa, fresh = answer.json()
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
    told = answer.json()
    assert [set(g) for g in told["guesses"]] == [{"label", "share"}] * 3
    assert sum(g["share"] for g in told["guesses"]) == pytest.approx(1, abs=1e-4)
    for stage in told["stages"]:
        raw = np.frombuffer(base64.b64decode(stage["maps"]), np.uint8).reshape(stage["shape"])
        assert (raw.max((1, 2)) == 255).all(), "each head from its least to its most"
    (answer,) = look("/look?model=3", PHOTO)
    assert answer.json()["guesses"] == [], "untrained: no classes"


@pytest.mark.parametrize("model", [0, 2])
def test_a_pixel_looks_around_itself(look, model):
    corners = []
    for y, x in ((0, 0), (0.99, 0.99)):
        (answer,) = look(f"/look?model={model}&y={y}&x={x}", PHOTO)
        told = answer.json()
        stage = told["stages"][0]
        raw = np.frombuffer(base64.b64decode(stage["maps"]), np.uint8).reshape(stage["shape"])
        rows, columns = np.nonzero(raw[0])
        corners.append((rows.mean() / raw.shape[1], columns.mean() / raw.shape[2]))
    assert max(corners[0]) < 0.4
    assert min(corners[1]) > 0.6


@pytest.mark.parametrize(
    ("path", "content", "code", "said"),
    [
        ("/look?model=0", b"no picture", 415, "no picture"),
        ("/look?model=0", b"", 415, "no picture"),
        ("/look?model=0", PHOTO[: len(PHOTO) // 2], 415, "no readable picture"),
        ("/look?model=0", letters(Image.new("RGB", (1, 1))), 415, "too few"),
        ("/look?model=9", PHOTO, 404, "models 0 to 2"),
        ("/look?model=0", bytes(serve.UPLOAD + 1), 413, "10 MB at most"),
    ],
)
def test_what_is_refused(look, path, content, code, said):
    (answer,) = look(path, content)
    assert answer.status_code == code
    assert said in answer.json()["detail"]


def test_a_bomb_is_not_opened(look, monkeypatch):
    monkeypatch.setattr(serve, "PIXELS", 100)
    (answer,) = look("/look?model=0", PHOTO)
    assert answer.status_code == 415
    assert "at most 100 are read" in answer.json()["detail"]


def test_another_sites_page_cannot_reach_it(ask):
    (answer,) = ask(("GET", "/models", b""), host="evil.example")
    assert answer.status_code == 400


def test_a_hundred_at_once(look):
    answers = look("/look?model=0", *[PHOTO if i % 4 else b"junk" for i in range(100)])
    codes = [answer.status_code for answer in answers]
    assert codes == [200 if i % 4 else 415 for i in range(100)]
    assert len({answer.text for answer in answers if answer.status_code == 200}) == 1


def test_a_port_in_use_is_said(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SystemExit) as stop:
            cli.main(["serve", "--port", str(taken.getsockname()[1]), "--model", "[linglo_nano]"])
    assert stop.value.code == 2
    assert "cannot be listened on" in capsys.readouterr().out


def test_what_cannot_be_served_is_said(tmp_path):
    with pytest.raises(ValueError, match="did you mean 'linglo_nano'"):
        serve.loaded("linglo_nan")
    path = saccade.save(saccade.build("qna_nano"), tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="holds no class names"):
        serve.loaded(str(path))


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
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    try:
        with playwright.sync_playwright() as started:
            browser = started.chromium.launch(executable_path=chromium, args=quiet)
            page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
            errors = []
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(f"http://127.0.0.1:{port}/")
            page.wait_for_selector("select")
            page.set_input_files("#file", tmp_path / "photo.png")
            page.wait_for_selector("figure canvas")
            assert page.locator(".guess").count() == 3
            page.click("#more")
            page.locator("select").nth(1).select_option("2")
            page.wait_for_function(
                "document.querySelectorAll('section')[1].querySelector('figure')"
            )
            page.locator(".photo").nth(1).focus()
            with page.expect_response(lambda answer: "y=" in answer.url) as answer:
                page.keyboard.press("ArrowUp")
            assert answer.value.ok
            wide = "document.documentElement.scrollWidth <= innerWidth"
            assert page.evaluate(wide), "a phone need not scroll sideways"
            page.set_input_files("#file", tmp_path / "text.png")
            page.wait_for_function("document.getElementById('said').className == 'bad'")
            assert errors == []
            browser.close()
    finally:
        server.should_exit = True
        thread.join()
