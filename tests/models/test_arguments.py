"""A weights file from a stranger builds the model that its weights fit, or is refused.

Nothing is fetched and no other file is opened, whatever the file asks for.
"""

import builtins
import json
import socket

import huggingface_hub
import pytest
import timm
import torch
from safetensors.torch import save_file

import saccade
from saccade.models import arguments
from saccade.models.describe import describe
from tests.attack import evil_contents


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """No socket connects, nothing is downloaded, and the names of opened files are noted."""

    def refuse(*_, **__):
        raise AssertionError("something reaches out")

    for owner, name in (
        (socket.socket, "connect"), (socket, "create_connection"), (socket, "getaddrinfo"),
        (huggingface_hub, "hf_hub_download"), (timm.models._hub, "hf_hub_download"),
        (torch.hub, "load_state_dict_from_url"), (torch.hub, "download_url_to_file"),
        (torch, "load"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, refuse)
    opened, whole = [], builtins.open

    def noted(path, *rest, **options):
        opened.append(str(path))
        return whole(path, *rest, **options)

    monkeypatch.setattr(builtins, "open", noted)
    return opened


@pytest.fixture(scope="module")
def net():
    return saccade.build("linglo_nano", num_classes=2).eval()


def written(net, path, about, notes=None):
    header = {"model": about, "notes": {} if notes is None else notes}
    save_file(net.state_dict(), path, metadata={"saccade": json.dumps(header)})
    return path


EVIL = {
    "url": {"pretrained_cfg_overlay": {"url": "http://127.0.0.1:9/x.pth"}},
    "url, pretrained": {
        "pretrained": True, "pretrained_cfg_overlay": {"url": "http://127.0.0.1:9/x.pth"},
    },
    "hub": {"name": "hf-hub:someone/model"},
    "hub, capital letters": {"name": "HF-HUB:someone/model"},
    "folder": {"name": "local-dir:MARKER"},
    "path as name": {"name": "../MARKER"},
    "checkpoint": {"checkpoint_path": "MARKER"},
    "cache": {"cache_dir": "MARKER"},
    "card": {"pretrained_cfg": {"file": "MARKER"}},
    "card as a word": {"pretrained_cfg": "in1k"},
    "features": {"features_only": True},
    "filter": {"pretrained_filter_fn": "os.system"},
    "device": {"device": "cuda:7"},
    "unknown": {"colour": "red"},
    "a dict": {"widths": {"a": 1}},
    "huge": {"widths": [10**9] * 4},
    "wide": {"in_chans": 10**6},
    "deep": {"depths": [10**6, 1, 1, 1]},
    "nested": {"widths": [[[[[[[1]]]]]]]},
    "no number": {"num_classes": "many"},
    "pool": {"global_pool": 0},
    "drop": {"drop_path_rate": 33},
    "nan": {"drop_rate": float("nan")},
    "text": {"mixer": "x" * 1000},
    "no name": {"name": None},
    "a list as name": {"name": ["linglo_nano"]},
    "a dict as name": {"name": {"file": "x"}},
    "beyond floats": {"num_classes": 10**400},
}  # fmt: skip


@pytest.mark.parametrize("kind", EVIL)
def test_a_header_reaches_nothing_outside(kind, net, alone, tmp_path):
    place = str(tmp_path / "marker")
    (tmp_path / "marker").mkdir()
    text = json.dumps({**describe(net), **EVIL[kind]}).replace("MARKER", place)
    path = written(net, tmp_path / "m.safetensors", json.loads(text))
    alone.clear()
    with pytest.raises(ValueError, match=r"^load: .*m\.safetensors") as error:
        saccade.load(path)
    assert "\n" not in str(error.value)
    assert [name for name in alone if name.startswith(place)] == []
    assert list((tmp_path / "marker").iterdir()) == []


def test_asked_to_be_pretrained_it_takes_the_weights_of_the_file(net, alone, tmp_path):
    path = written(net, tmp_path / "m.safetensors", {**describe(net), "pretrained": True})
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(saccade.load(path)(x), net(x))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({}, "without the name"),
        ({"model": {}}, "without the name"),
        ({"model": {"num_classes": 2}}, "without the name"),
        ({"model": 3}, "without the name"),
        ([], "without the name"),
        ({"model": {"name": "linglo_nano"}, "notes": []}, "notes"),
        ({"model": {"name": "linglo_nano"}, "notes": {"task": 3}}, "notes"),
        ({"model": {"name": "linglo_nano"}, "notes": {"classes": [1, 2]}}, "class names"),
        ({"model": {"kind": "retinanet"}}, "names no model"),
        ({"model": {"kind": ["retinanet"], "name": "x"}}, "without the kind"),
    ],
)
def test_half_a_header_is_one_sentence(header, message, net, tmp_path):
    path = tmp_path / "m.safetensors"
    save_file(net.state_dict(), path, metadata={"saccade": json.dumps(header)})
    with pytest.raises(ValueError, match=message):
        saccade.load(path)


@pytest.mark.parametrize("text", ["{", "", "[" * 100_000])
def test_a_header_that_is_no_json(text, net, tmp_path):
    save_file(net.state_dict(), tmp_path / "m.safetensors", metadata={"saccade": text})
    with pytest.raises(ValueError, match="header"):
        saccade.load(tmp_path / "m.safetensors")


def test_a_header_without_notes_has_none(net, tmp_path):
    header = {"model": describe(net)}
    save_file(net.state_dict(), tmp_path / "m", metadata={"saccade": json.dumps(header)})
    assert saccade.load(tmp_path / "m").notes == {}


def test_files_that_hold_a_pickle_run_nothing(tmp_path):
    marker = tmp_path / "marker"
    for i, content in enumerate(evil_contents(marker).values()):
        path = tmp_path / f"{i}.safetensors"
        path.write_bytes(content)
        with pytest.raises(ValueError, match="no safetensors file"):
            saccade.load(path)
    assert not marker.exists()


def test_a_detectors_settings_are_its_own(alone, tmp_path):
    from saccade.models import retinanet

    net = retinanet.build("linglo_nano", 3, settings={"dim": 32, "depth": 1})
    assert describe(saccade.load(saccade.save(net, tmp_path / "m"))) == describe(net)
    for more in ({"settings": {"url": "x"}}, {"checkpoint_path": "x"}, {"name": "hf-hub:a/b"}):
        path = written(net, tmp_path / "m", {**describe(net), **more})
        with pytest.raises(ValueError, match="load:"):
            saccade.load(path)


def test_a_folder_of_timm_is_read_without_timms_loader(net, alone, tmp_path):
    """Its config may name an address or a file; only its own weights are read."""
    from timm.models import save_for_hf

    save_for_hf(net, str(tmp_path), {"label_names": ["a", "b"]}, safe_serialization=True)
    config = json.loads((tmp_path / "config.json").read_text())
    evil = {"url": "http://127.0.0.1:9/x", "hf_hub_id": "a/b", "file": "x", "custom_load": True}
    config["pretrained_cfg"] |= evil
    (tmp_path / "config.json").write_text(json.dumps(config))
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(saccade.load(tmp_path)(x), net(x))
    config["model_args"] = {"checkpoint_path": "x"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"config.json' is no config of timm's"):
        saccade.load(tmp_path)


def test_what_models_are_built_with_passes():
    for name in saccade.names("*_nano"):
        about = describe(saccade.build(name)) | {"drop_path": 0.1}
        arguments.check({key: value for key, value in about.items() if key != "fused"})
    arguments.check({"name": "vit_tiny_patch16_224", "img_size": 64, "num_classes": 3})
    with pytest.raises(ValueError, match=r"did you mean 'img_size'"):
        arguments.check({"name": "vit_tiny_patch16_224", "img_siz": 64})
