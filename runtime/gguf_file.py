"""A `.gguf` file as a model: its config and tokenizer in the Hugging Face layout, its tensors left where they are.

In: the path of a file. Out: a folder under `$RADICEL_HOME/gguf` with `config.json`, `generation_config.json`, the
tokenizer's files and a `gguf.json` that names the file; `load_model` reads the tensors from it, and nothing is written
twice. Another file, or the same one changed, gets another folder. No torch here.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, dequantize

from ..errors import WeightsError
from .gguf_config import config_of
from .gguf_pointer import POINTER, stamp_of
from .gguf_tokenizer import tokenizer_config_of, tokenizer_of

__all__ = ["folder_of_file", "open_gguf"]

_LAYOUT = 1
"""Raised whenever the files of a folder change."""
_ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


class _Reader(GGUFReader):  # type: ignore[misc]  # the package has no types
    """A reader that names the tensor at which a file is cut short."""

    def _build_tensors(self, start_offs: int, fields: list[Any]) -> None:
        for field in fields:
            _, name, _, dims, kind, offset = field.parts
            block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind[0])]
            end = start_offs + int(offset[0]) + int(np.prod(dims)) * size // block
            if end > len(self.data):
                raise ValueError(f"tensor {bytes(name).decode()!r} ends at byte {end} of {len(self.data)}")
        super()._build_tensors(start_offs, fields)


def open_gguf(path: Path) -> tuple[Any, dict[str, Any]]:
    """The reader of a file, and its metadata by key.

    Raises:
        WeightsError: not a whole GGUF file.
    """
    try:
        reader = _Reader(path)
        return reader, {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, IndexError, OSError, KeyError, OverflowError, UnicodeDecodeError) as error:
        raise WeightsError(f"{path} is damaged or cut short: {error}; fetch the model again") from error


def folder_of_file(path: Path, home: Path) -> Path:
    """The folder of a `.gguf` file, made if it is not there yet.

    Raises:
        WeightsError: not a whole GGUF file.
        UnsupportedModelError: an architecture or a tokenizer that we do not have.
    """
    path = path.resolve()
    stamp = stamp_of(path)
    folder = home / "gguf" / f"{path.stem[:40]}-{hashlib.sha256(f'{_LAYOUT} {path} {stamp}'.encode()).hexdigest()[:16]}"
    if (folder / POINTER).is_file():
        return folder
    reader, meta = open_gguf(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    ropes = {
        name: np.asarray(dequantize(tensors[name].data, tensors[name].tensor_type), np.float32).reshape(-1).tolist()
        for name in _ROPE_TENSORS
        if name in tensors
    }
    config = config_of(path, meta, tied="output.weight" not in tensors, ropes=ropes)
    files = {
        "config.json": config,
        "generation_config.json": _generation_config(meta, config),
        "tokenizer_config.json": tokenizer_config_of(meta),
        POINTER: {"file": str(path), "stamp": stamp},
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".making-"))
    try:
        tokenizer_of(path, meta).save(str(made / "tokenizer.json"))
        for name, value in files.items():
            (made / name).write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")
        made.rename(folder)
    except OSError:
        if not (folder / POINTER).is_file():  # else another process was first
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _generation_config(meta: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Start, padding, and every token that ends a text: of the whole, of a turn, of a message."""
    ends = (meta.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    return {
        "bos_token_id": config["bos_token_id"],
        "eos_token_id": list(dict.fromkeys(end for end in ends if end is not None)) or None,
        "pad_token_id": config["pad_token_id"],
    }
