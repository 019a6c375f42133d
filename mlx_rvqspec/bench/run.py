"""All suites on one model, as one JSON object. What ``mlx-tts bench`` does."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..device_profile import rows_for
from ..generate import Engine
from ..load import load_model
from ..owner import owner
from ..spec_decode.drafter import device_name, find
from .frame import WRAPS, Plan, frame_suite, spoken_frames
from .harness import environment
from .scaling import scaling_suite
from .speech import TEXTS, speech_suite

SUITES = ("speech", "frame", "scaling")


def bench(
    folder: Path,
    *,
    suites: Sequence[str] = SUITES,
    dtype: str | None = None,
    drafter: str | None = None,
    quick: bool = False,
    seed: int = 0,
    show: Callable[[str], None] = lambda message: None,
) -> dict[str, Any]:
    """The measurements of the model in ``folder`` on this machine; quick: few repeats, for a look.

    Everything runs as it does for a user: on the owner thread, compiled on a GPU and uncompiled elsewhere.
    """
    texts = {name: text for name, text in TEXTS.items() if not quick or name == "short"}
    compiled = mx.default_device() == mx.Device(mx.gpu)
    hows = ("compiled", "uncompiled") if compiled else ("uncompiled", "compiled")  # as it runs for a user comes first
    wrap = WRAPS[hows[0]]
    show("loading")
    begin = time.perf_counter()
    model = owner().run(lambda: load_model(folder, dtype=dtype))
    drafts = owner().run(find, folder, model.multi_code_decoder, model.fingerprints, drafter)
    num_nodes = rows_for(drafts, device_name(model.precision, compiled)) if drafts else 1
    engine = owner().run(lambda: Engine(model, wrap, drafter=drafts, num_nodes=num_nodes, adapt=not compiled))
    load_s = time.perf_counter() - begin
    weights_bytes = mx.get_active_memory()
    result: dict[str, Any] = {"environment": environment(), "model": facts(engine, model, folder)}
    result |= {"compiled": compiled, "quick": quick, "seed": seed, "weights_bytes": weights_bytes, "suites": {}}
    if "speech" in suites:
        speech = speech_suite(engine, load_s, repeats=1 if quick else 3, seed=seed, texts=texts, show=show)
        result["suites"]["speech"] = speech
    if "frame" in suites:
        show("timing frames")
        sizes = tuple(n for n in drafts.trees if n > 1 and (n == num_nodes or not quick)) if drafts else ()
        plan = Plan(hows[:1], sizes, 2, 3) if quick else Plan(hows, sizes, 12, 11)
        result["suites"]["frame"] = owner().run(
            lambda: frame_suite(model, drafts, list(texts.values()), plan, seed=seed)
        )
    if "scaling" in suites:
        show("timing longer texts and batches")

        def scale() -> dict[str, Any]:
            frames = spoken_frames(model, list(texts.values()), 1, seed)
            return scaling_suite(model, frames, wrap, repeats=3 if quick else 11)

        result["suites"]["scaling"] = owner().run(scale)
    return result


def facts(engine: Engine, model: Any, folder: Path) -> dict[str, Any]:
    return {
        "name": folder.name,
        "kind": model.config.tts_model_type,
        "size": model.config.tts_model_size,
        "fingerprint": model.fingerprint,
        "precision": model.precision.removeprefix("mlx.core."),
        "why_plain": engine.why_plain,
        "num_nodes": engine.num_nodes,
    }
