"""Whatever a file holds, mlx-tts speaks or says in a line why not; whatever happens to a run, no half file is left."""

import json
import math
import signal
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from damage import (
    HELLO,
    Damage,
    attempt,
    attempt_handed,
    damages,
    handed_damages,
    mlx_tts,
    signalled,
    sound_files,
    sound_folder,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_drafter import OURS, PAPER, random_drafter

from mlx_rvqspec.spec_decode import drafter as drafters
from mlx_rvqspec.text import clean, prepare

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
LOOSE = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return sound_folder(tmp_path_factory.mktemp("sound") / "model")


def test_the_sound_folder_speaks(source):
    outcome = attempt(source, Damage("merges.txt", (source / "merges.txt").read_bytes()))
    assert outcome.exit_code == 4 and "before the text did" in outcome.said


def edited(source: Path, name: str, *keys: str, to: object) -> Damage:
    """The JSON file with the value at ``keys`` replaced."""
    data = json.loads((source / name).read_text())
    part = data
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = to
    return Damage(name, json.dumps(data).encode())


CONFIG, SPEECH, TALKER = "config.json", "speech_tokenizer/config.json", "talker_config"
FOUND = [  # once a traceback, an endless loop, a read past a table or gigabytes of memory
    (CONFIG, TALKER, "hidden_size", "64", "hidden_size is '64'"),
    (CONFIG, TALKER, "num_hidden_layers", 10**9, "num_hidden_layers is 1000000000"),
    (CONFIG, TALKER, "head_dim", 15, "head_dim 15"),
    (CONFIG, TALKER, "rms_norm_eps", math.nan, "rms_norm_eps is nan"),
    (CONFIG, TALKER, "text_vocab_size", 10**40, "text_vocab_size is 1"),
    (CONFIG, TALKER, "codec_bos_id", 10**6, "codec_bos_id is 1000000, its table has 1088 rows"),
    (CONFIG, TALKER, "codec_bos_id", -1, "codec_bos_id is -1"),
    (CONFIG, TALKER, "spk_id", {"ryan": 5000}, "ryan is 5000"),
    (CONFIG, "default_speaker", "cedar", "default_speaker 'cedar' is none of "),
    (CONFIG, TALKER, "spk_is_dialect", {"ryan": "klingon"}, "dialect 'klingon'"),
    (CONFIG, "tts_pad_token_id", 99999, "tts_pad_token_id is 99999"),
    (SPEECH, "decoder_config", "sliding_window", 10**9, "sliding_window is 1000000000"),
    (SPEECH, "decoder_config", "upsample_rates", [10**9, 5, 4, 3], "upsample_rates is"),
    (SPEECH, "output_sample_rate", 0, "output_sample_rate is 0"),
    ("generation_config.json", "max_new_tokens", "many", "generation_config.json: invalid literal"),
    ("generation_config.json", "repetition_penalty", 10**40, "repetition_penalty is 1"),
    ("generation_config.json", "subtalker_temperature", 1e300, "subtalker_temperature is 1e+300"),
    ("generation_config.json", "subtalker_top_k", 50.0, "subtalker_top_k is 50.0"),
    ("generation_config.json", "temperature", [1], "generation_config.json: "),
    ("vocab.json", "a", 10**9, "id 1000000000, the model's table"),
    ("vocab.json", "a", None, "not a table of ids"),
    ("tokenizer_config.json", "added_tokens_decoder", [], "added_tokens_decoder is not as expected"),
    ("model.safetensors.index.json", "weight_map", "x", "a\0b", "outside its folder"),
]


@pytest.mark.parametrize("case", FOUND, ids=lambda case: "-".join(map(str, case[:-1]))[-40:])
def test_a_value_that_makes_no_model_is_named(source, case):
    name, *keys, value, reason = case
    outcome = attempt(source, edited(source, name, *keys, to=value))
    assert outcome.exit_code == 3 and reason in outcome.said


def tensor_file(**header: object) -> bytes:
    packed = json.dumps(header).encode()
    return len(packed).to_bytes(8, "little") + packed + bytes(16)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ((2**63).to_bytes(8, "little") + b"{}", "truncated or no safetensors"),
        (tensor_file(x={"dtype": "F32", "shape": [2**40], "data_offsets": [0, 16]}), "malformed safetensors"),
        (tensor_file(x={"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 2**60]}), "malformed safetensors"),
        (tensor_file(x={"dtype": "F32", "shape": [-2, -2], "data_offsets": [0, 16]}), "malformed safetensors"),
        (tensor_file(x={"dtype": "F99", "shape": [4], "data_offsets": [0, 16]}), "malformed safetensors"),
        (tensor_file(x={"dtype": "F32", "shape": [3], "data_offsets": [4, 16]}), "overlaps another or leaves a gap"),
        (tensor_file(x=[1]), "malformed safetensors"),
        (tensor_file(__metadata__={"drafter": 1}), "malformed safetensors"),
    ],
)
@pytest.mark.parametrize("name", ["model.safetensors", "drafter.safetensors"])
def test_a_header_must_fit_its_file(source, name, data, reason):
    outcome = attempt(source, Damage(name, data))
    assert outcome.exit_code == 3 and reason in outcome.said


def redrafted(source: Path, **changes: object) -> Damage:
    """The drafter's file with some of what its texts say replaced."""
    data = (source / "drafter.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"]["drafter"] = json.dumps(json.loads(header["__metadata__"]["drafter"]) | changes)
    packed = json.dumps(header).encode()
    return Damage("drafter.safetensors", len(packed).to_bytes(8, "little") + packed + data[8 + length :])


def tree(*paths: list[int]) -> list[dict]:
    return [{"version": 1, "num_nodes": 1 + len(paths), "paths": paths, "provenance": {}}] * 2


@pytest.mark.parametrize(
    "changes",
    [
        {"trees": [tree([10**9])], "facts": {"num_nodes": 2}},
        {"trees": [tree(*([rank] for rank in range(2000)))], "facts": {"num_nodes": 2001}},
        {"trees": []},
        {"facts": {}},
        {"facts": {"num_nodes": [8]}},
        {"fingerprint": 7},
        {"form": asdict(replace(PAPER, num_depths=2**70))},
        {"form": asdict(PAPER) | {"is_scaled": 1}},
    ],
)
def test_a_drafter_is_not_believed(source, changes):
    outcome = attempt(source, redrafted(source, **changes))
    assert outcome.exit_code == 3 and "mlx-tts fit" in outcome.said


@given(data=st.data())
@settings(max_examples=40, derandomize=True, **LOOSE)
def test_damaged_files_end_in_speech_or_one_line(source, data):
    attempt(source, data.draw(damages(source)))


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    return sound_files(tmp_path_factory.mktemp("files") / "sound")


@given(data=st.data())
@settings(max_examples=20, derandomize=True, **LOOSE)
def test_damaged_recordings_voices_rows_and_records_end_in_one_line(files, data):
    attempt_handed(data.draw(handed_damages(files)))


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=500, **LOOSE)
def test_five_hundred_damaged_recordings_voices_rows_and_records_end_in_one_line(files, data):
    attempt_handed(data.draw(handed_damages(files)))


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=2000, **LOOSE)
def test_two_thousand_damaged_files_end_in_speech_or_one_line(source, data):
    attempt(source, data.draw(damages(source)))


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_at_a_random_moment_leaves_a_whole_file_or_none(tmp_path, number):
    for delay_s in np.random.default_rng(number).uniform(0, 2.5, 2):
        signalled(tmp_path, number, delay_s)


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_fifty_signals_at_random_moments_leave_whole_files_or_none(tmp_path, number):
    for delay_s in np.random.default_rng().uniform(0, 4, 50):
        signalled(tmp_path, number, delay_s)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 kB, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_is_one_line_and_leaves_nothing(small_disk, tmp_path):
    (small_disk / "ballast").write_bytes(bytes(50_000))
    for name in ("a.wav", "a.flac", "a.ogg", "a.pcm"):
        outcome = mlx_tts(*HELLO, "-o", small_disk / name)
        assert outcome.exit_code in (0, 3), outcome
        if outcome.exit_code:
            assert outcome.said.count("\n") == 1 and not (small_disk / name).exists()
        (small_disk / name).unlink(missing_ok=True)
    assert mlx_tts(*HELLO, "-o", small_disk / "a.wav").exit_code == 3
    assert mlx_tts(*HELLO, "-o", tmp_path / "a.wav", "--report", small_disk / "pictures").exit_code == 3
    assert mlx_tts("inspect", tmp_path / "a.wav", "-o", small_disk / "a.html").exit_code == 3
    assert {path.name for path in small_disk.rglob("*")} <= {"ballast", "pictures", "codes.npz"}


def test_a_drafter_that_does_not_fit_the_disk_is_an_os_error_and_leaves_nothing(small_disk):
    (small_disk / "ballast").write_bytes(bytes(50_000))
    with pytest.raises(OSError, match="full"):
        drafters.save(random_drafter(OURS), small_disk / "d.safetensors")
    assert [path.name for path in small_disk.iterdir()] == ["ballast"]


def test_a_read_only_disk_is_one_line(small_disk):
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    outcome = mlx_tts(*HELLO, "-o", small_disk / "a.wav")
    assert outcome.exit_code == 3 and "Read-only" in outcome.said and outcome.said.count("\n") == 1


def test_a_place_that_is_no_disk_is_one_line():
    outcome = mlx_tts(*HELLO, "-o", "/proc/a.wav")
    assert outcome.exit_code == 3 and outcome.said.count("\n") == 1


@given(text=st.text(max_size=60) | st.binary(max_size=40).map(lambda data: data.decode("utf-8", "surrogateescape")))
@settings(max_examples=60, derandomize=True, **LOOSE)
def test_any_text_is_spoken_or_refused_in_a_line(text):
    try:
        assert prepare(clean(text)).strip() and prepare(text)
    except ValueError as error:
        assert "\n" not in str(error)
