"""The official package's side of bench/peers.py, on the CPU: as bench/peers_mlx_audio.py, in an environment of its own.

Text to codes only. PyTorch brings its own BLAS, which runs on one thread here.
"""

import importlib.machinery
import json
import os
import sys
import time
from types import ModuleType
from typing import Any

ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # the library prints

for name in ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi"):  # of the 25 Hz codec only
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
sys.modules["torchaudio.compliance"].kaldi = sys.modules["torchaudio.compliance.kaldi"]  # type: ignore[attr-defined]

import qwen_tts  # noqa: E402  # pyright: ignore[reportMissingImports]
import torch  # noqa: E402  # pyright: ignore[reportMissingImports]


class Codes:
    """Stands for the speech tokenizer: keeps the codes and makes no sound."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []

    def decode(self, encoded: list[dict[str, Any]]) -> tuple[list[None], int]:
        self.rows = encoded[0]["audio_codes"].tolist()
        return [None], 24_000


def codes(tts: Any, task: dict[str, Any]) -> dict[str, Any]:
    kept = tts.model.speech_tokenizer = Codes()
    greedy, heat = task["temperature"] == 0, task["temperature"] or 1.0
    torch.manual_seed(task["seed"])
    begin = time.perf_counter()
    tts.generate_custom_voice(
        text=task["text"],
        speaker=task["speaker"],
        language="Auto",
        non_streaming_mode=task["text_feed"] == "full",
        do_sample=not greedy,
        subtalker_dosample=not greedy,
        temperature=heat,
        subtalker_temperature=heat,
        top_k=50,
        subtalker_top_k=50,
        top_p=1.0,
        subtalker_top_p=1.0,
        repetition_penalty=task["penalty"],
        max_new_tokens=task["frames"] + 1,  # it counts the code that ends
    )
    return {"seconds": time.perf_counter() - begin, "codes": kept.rows, "peak_bytes": 0}


def main() -> None:
    torch.set_num_threads(1)
    begin = time.perf_counter()
    tts = qwen_tts.Qwen3TTSModel.from_pretrained(sys.argv[1], dtype=torch.float32, attn_implementation="sdpa")
    facts = {"load_s": time.perf_counter() - begin, "torch": torch.__version__}
    print(json.dumps(facts), file=ANSWERS)
    for line in sys.stdin:
        print(json.dumps(codes(tts, json.loads(line))), file=ANSWERS)


if __name__ == "__main__":
    main()
