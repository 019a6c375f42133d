"""mlx-tts info: a model, and what would run here, from its headers alone."""

import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..config import ModelError, read_config, read_json
from ..device_profile import best_rows, describe
from ..generate import DOES_NOT_PAY, NO_DRAFTER
from ..load import default_dtype, fingerprints, resolve, weight_files
from ..quantisation import label, table_of
from ..spec_decode.drafter import device_name, place
from ..tensor_file import read_header
from ..version import __version__
from .shared import Json, Model

NORM = "talker.model.norm.weight"  # stored in the precision of the whole talker, also where that is quantised
HALVES = {"BF16": mx.bfloat16, "F16": mx.float16}


def info(model: Model = None, as_json: Json = False) -> None:
    """Show a model, and what would run here, without loading its weights."""
    folder = resolve(model)
    config = read_config(folder)
    facts = {
        "model": str(folder),
        "kind": config.tts_model_type,
        "size": config.tts_model_size,
        "speakers": config.speakers,
        "languages": config.languages,
        "sample_rate": config.sample_rate,
        "frame_rate_hz": config.frame_rate_hz,
        "codebooks": config.code_decoder.num_code_groups,
        "device": "gpu" if _on_gpu() else "cpu",
        **_plan(folder),
        "blas": sys.modules["mlx_rvqspec"].BLAS or "MLX's own",  # chosen before this module could be
        "versions": (f"mlx_rvqspec {__version__}", f"mlx {metadata.version('mlx')}"),
    }
    if as_json:
        print(json.dumps(facts))
        return
    for name, value in facts.items():
        print(f"{name:14} {', '.join(value) if isinstance(value, tuple) else value}")


def _on_gpu() -> bool:
    return mx.default_device() == mx.Device(mx.gpu)


def _plan(folder: Path) -> dict[str, Any]:
    """How ``load`` would run the model; what is wrong with its weights or its drafter where they tell nothing."""
    quantised = label(table_of(read_json(folder / "config.json"), str(folder)))
    facts = {"quantised": quantised or "no"}
    try:
        spans = {name: span for path in weight_files(folder) for name, span in read_header(path)[0].items()}
        stored = HALVES.get(spans[NORM].dtype, mx.float32) if NORM in spans else mx.float32
        dtype, marks = default_dtype(stored), fingerprints(folder)
        precision = f"{dtype} {quantised}".strip()  # as Qwen3TTS.precision
        facts |= {"precision": str(dtype).removeprefix("mlx.core.")}
        facts |= {"decoding": _decoding(place(folder, marks), device_name(precision, _on_gpu()))}
        return facts | {"measured": describe(marks) or ("not yet; mlx-tts fit --keep does it",)}
    except ModelError as error:
        return facts | {"measured": (f"nothing: {error}",)}


def _decoding(drafter: Path | None, device: str) -> str:
    """Plain or speculative, and why; drafter: the file that would be used."""
    if drafter is None:
        return f"plain: {NO_DRAFTER}"
    try:
        about = json.loads(read_header(drafter, remedy="run mlx-tts fit to make one")[1]["drafter"])
        sizes = {1 + len(tree["paths"]) for tree, _ in about["trees"]}
        num_nodes = best_rows(about["fingerprint"], device, sizes, int(about["facts"]["num_nodes"]))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ModelError(f"{drafter} cannot be read as a drafter ({error!r:.80}); run mlx-tts fit") from None
    if num_nodes == 1:
        return f"plain: {DOES_NOT_PAY}"
    return f"speculative, {num_nodes} rows a round, with {drafter}"
