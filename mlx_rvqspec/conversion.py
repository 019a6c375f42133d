"""A quantised copy of a model: a folder that loads as any other and says in its config.json how it is packed."""

import json
import os
import shutil
from pathlib import Path

from .config import ModelError, read_config, read_json
from .load import SOURCE_FINGERPRINT, fingerprint, read_talker, weight_files
from .quantisation import label, quantise
from .tensor_file import write_tensors
from .whole_file import unfinished

WEIGHTS = "model.safetensors"


def convert(folder: Path, output: Path, *, bits: int, mixed: bool = False) -> None:
    """Write the model in ``folder`` to a new folder, its talker quantised and all else as it is.

    bits, mixed: see ``quantisation.quantise``. The copy keeps the fingerprint of its source, whose drafter it may use.
    The new folder appears when it is complete and not before. Raises ValueError where it exists or has no parent,
    ModelError for a model that cannot be read or is quantised already.
    """
    if output.exists():
        raise ValueError(f"{output} exists; name a new folder")
    if not output.parent.is_dir():
        raise ValueError(f"there is no folder {output.parent}; create it first")
    read_config(folder)
    weights, table = read_talker(folder)
    if table:
        raise ModelError(f"{folder} is quantised already ({label(table)}); convert the original")
    weights, table = quantise(weights, bits, mixed)
    config = read_json(folder / "config.json")
    config |= {"quantization": table, SOURCE_FINGERPRINT: fingerprint(folder)}
    with unfinished(output.with_name(f".{os.getpid()}.{output.name}")) as part:
        _copy_rest(folder, part)
        (part / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        write_tensors(part / WEIGHTS, weights, {"format": "mlx"})
        part.rename(output)


def _copy_rest(folder: Path, to: Path) -> None:
    """All files of a model but its weights and its config.json; what hub caches link to is copied."""
    left_out = {path.name for path in weight_files(folder)} | {"config.json", f"{WEIGHTS}.index.json"}

    def ignore(where: str, names: list[str]) -> set[str]:
        hidden = {name for name in names if name.startswith(".")}
        return hidden | left_out & set(names) if Path(where) == folder else hidden

    shutil.copytree(folder, to, ignore=ignore)
