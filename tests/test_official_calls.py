"""Every line of docs/official_calls.md does what its table says, on small checkpoints of the four kinds."""

import base64
import io
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from conftest import ROOT, TINY

import mlx_rvqspec as tts

GOLDEN = TINY.parent
LINES = (ROOT / "docs" / "official_calls.md").read_text().splitlines()
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in LINES if line.startswith("| ")]
CALLS = [(re.fullmatch("`(.*)`", here)[1], outcome.strip(" |")) for official, here, outcome in ROWS if here != "here"]


@cache
def engines() -> dict[str, tts.Engine]:
    folders = {"base": "tiny_base", "custom": "tiny_customvoice", "custom_1b7": "tiny_projected"}
    loaded = {name: tts.load(GOLDEN / folder) for name, folder in (folders | {"design": "tiny_voicedesign"}).items()}
    for engine in loaded.values():
        engine.sampling = replace(engine.sampling, max_frames=2)
    return loaded


@cache
def names() -> dict[str, Any]:
    audio = np.load(GOLDEN / "tiny_base" / "golden.npz")["codec.enc_wav"]
    file = io.BytesIO()
    soundfile.write(file, audio, 24_000, format="WAV")
    longer = tts.Sampling(max_frames=14, do_sample=False)
    designed = engines()["design"].speak("Hi.", instruct="A calm, low voice.", sampling=longer, seed=1)
    modules = {"tts": tts, "np": np, "io": io, "base64": base64, "base_folder": GOLDEN / "tiny_base"}
    things = {"audio": audio, "rate": 24_000, "encoded": base64.b64encode(file.getvalue()), "designed": designed}
    return {**modules, **engines(), **things}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording and a voice, by the names the table uses."""
    monkeypatch.chdir(tmp_path)
    soundfile.write("ref.wav", names()["audio"], 24_000)
    names()["base"].make_voice(names()["audio"], 24_000, text="A small reference.").save("me.voice")


def test_the_table_is_read_whole() -> None:
    assert len(CALLS) > 50 and all(outcome for _, outcome in CALLS)


@pytest.mark.parametrize("call, outcome", CALLS)
def test_a_call_does_what_the_table_says(call: str, outcome: str) -> None:
    if outcome == "works":
        result = eval(call, names())
        assert not any(isinstance(row, Exception) for row in (result if isinstance(result, list) else [result]))
        return
    with pytest.raises((ValueError, TypeError, tts.ModelError)) as caught:
        eval(call, names())
    assert outcome in str(caught.value) and "\n" not in str(caught.value)
