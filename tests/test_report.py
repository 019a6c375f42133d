"""Pictures of a run: what is recorded is what was spoken, and the page shows it without needing anything else."""

import io
import re
import struct
import zipfile
import zlib

import numpy as np
import pytest
from damage import damaged_bytes, mlx_tts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_rounds_speech import engine

from mlx_rvqspec.audio import open_file, to_pcm16
from mlx_rvqspec.report.page import heard, render, told
from mlx_rvqspec.report.pictures import HEAT, heat, mel_spectrogram, on_columns, outline, png, rgb
from mlx_rvqspec.report.record import Record, Recorder, read_record
from mlx_rvqspec.report.summary import summary
from mlx_rvqspec.sampling import Sampling

RATE = 24_000


@pytest.fixture(scope="module")
def run():
    """A record of seven frames, and the last chunk of their stream."""
    recorder = Recorder()
    options = {"speaker": "ryan", "seed": 3, "decode": "spec", "sampling": Sampling(max_frames=7), "chunk_frames": 3}
    chunks = list(recorder.watch(engine().stream("Hello there.", **options)))
    return recorder.record(RATE, {"text": "Hello <there> @DATA@.", "load_s": 0.5}), chunks[-1]


def tone(hz: float, seconds: float = 1.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hz * np.arange(int(seconds * RATE)) / RATE)).astype(np.float32)


def test_a_record_holds_what_was_spoken(run):
    record, last = run
    assert len(record.codes) == last.stats.frames == 7 and len(record.audio) == 7 * 1920
    assert record.starts.tolist() == [1920 * i for i in range(7)]
    assert record.rounds.sum() == last.stats.rounds
    assert (record.stages[:, 0] <= record.stages[:, 1]).all() and (record.stages[:, 1] <= record.stages[:, 2]).all()
    assert record.stages[-1, 2] == last.stats.total_s and record.stages[:, 3].sum() == pytest.approx(record.audio_s)


def test_a_saved_record_reads_back(run, tmp_path):
    record, _ = run
    record.save(tmp_path / "codes.npz")
    again = read_record(tmp_path / "codes.npz")
    for name in ("codes", "depths", "starts", "stages"):
        np.testing.assert_array_equal(getattr(again, name), getattr(record, name))
    np.testing.assert_array_equal(to_pcm16(again.audio), to_pcm16(record.audio))
    assert again.facts == record.facts and again.sample_rate == RATE
    assert render(again, "a.wav") == render(read_record(tmp_path / "codes.npz"), "a.wav")


def test_the_page_is_one_file_that_shows_every_part(run):
    record, last = run
    page = render(record, "a.wav")
    for part in ("Wave", "Mel-spectrogram", "Codes", "Who chose them", "Rounds per frame", "When", "<audio"):
        assert part in page
    assert not re.findall(r"(?:src|href)=\"(?!data:)", page) and "http" not in page.replace("http://www.w3.org", "")
    assert "Hello &lt;there&gt; @DATA@." in page and "<there>" not in page
    assert f"{last.stats.codes_per_round:.2f}" in page and f'"codes": {record.codes.tolist()}' in page


def test_mere_sound_has_a_page_too(tmp_path):
    with open_file(tmp_path / "a.wav", RATE, comment="mlx-tts seed 9") as write:
        write(tone(440))
    record = read_record(tmp_path / "a.wav")
    page = render(record, "a.wav")
    assert ("comment", "mlx-tts seed 9") in told(record) and "Mel-spectrogram" in page and "Rounds" not in page


@pytest.mark.parametrize("plain", [False, True])
def test_the_summary_is_short_and_can_be_ascii(run, plain):
    text = summary(run[0], "a.wav", plain=plain)
    assert text.splitlines()[0] == "a.wav" and len(text.splitlines()) < 20
    assert text.isascii() == plain and "rounds per frame" in text


def test_silence_is_measured_in_the_summary():
    audio = np.concatenate([np.zeros(RATE // 2, np.float32), tone(300), np.zeros(RATE, np.float32)])
    nothing = np.zeros((0, 16), np.int32)
    record = Record(audio, RATE, nothing, nothing, np.zeros(0, np.int64), np.zeros((0, 4)))
    assert "peak               -6.0 dB; silent for 0.5 s at the start, 1.0 s at the end" in summary(record, "a")


def test_a_listener_waits_for_a_late_chunk():
    stages = np.array([[0, 1, 1.5, 1.0], [1.5, 2, 2.25, 1.0], [2.25, 5, 5.5, 1.0]])
    assert heard(stages) == [(1.5, 2.5), (2.5, 3.5), (5.5, 6.5)]


@pytest.mark.parametrize(("hz", "row"), [(200, range(1, 7)), (2000, range(32, 42)), (8000, range(66, 76))])
def test_the_spectrogram_is_light_where_the_tone_is(hz, row):
    levels = mel_spectrogram(tone(hz), RATE)
    assert levels.shape == (80, 94) and levels.max() == 0 and levels.min() >= -80.001
    assert set(np.argmax(levels[:, 2:-4], axis=0)) <= set(row)


def test_a_long_recording_has_no_more_columns():
    assert mel_spectrogram(tone(200, 40.0), RATE).shape[1] <= 3000
    assert outline(tone(200, 40.0), 900).shape == (2, 900)


def test_a_png_holds_its_pixels():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 4)).astype(np.uint8)
    data = png(pixels)
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", data[16:24]) == (7, 5)
    begin = data.index(b"IDAT")
    (length,) = struct.unpack(">I", data[begin - 4 : begin])
    rows = np.frombuffer(zlib.decompress(data[begin + 4 : begin + 4 + length]), np.uint8).reshape(5, 29)
    assert not rows[:, 0].any() and np.array_equal(rows[:, 1:].reshape(5, 7, 4), pixels)
    assert struct.unpack(">I", data[begin + 4 + length :][:4])[0] == zlib.crc32(data[begin : begin + 4 + length])


def test_colours_begin_and_end_where_they_should():
    np.testing.assert_array_equal(heat(np.array([-1, 0, 1, 2])), rgb([HEAT[0], HEAT[0], HEAT[-1], HEAT[-1]]))


def test_frames_stand_where_they_sound_and_pauses_are_empty():
    columns = on_columns(np.array([[1], [2], [3]]), np.array([0, 10, 47]), 60, 10)
    assert columns[:, 0].tolist() == [1, 2, -1, -1, -1, 3]


def test_speak_reports_and_inspect_reads(tmp_path, monkeypatch):
    from conftest import TINY

    monkeypatch.chdir(tmp_path)
    hello = ["speak", "Hello.", "--model", TINY, "--speaker", "ryan", "--seed", 3]
    assert mlx_tts(*hello, "-o", "a.wav", "--report", "pictures").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == ["codes.npz", "report.html"]
    record = read_record(tmp_path / "pictures" / "codes.npz")
    assert record.facts["text"] == "Hello." and record.facts["speaker"] == "ryan" and record.facts["seed"] == 3
    again = mlx_tts(*hello, "-o", "b.wav", "--report", "pictures")
    assert again.exit_code == 2 and "exists; --force" in again.said and not (tmp_path / "b.wav").exists()
    assert mlx_tts("inspect", "pictures/codes.npz", "-o", "c.html").exit_code == 0
    shown = mlx_tts("inspect", "a.wav")
    assert shown.exit_code == 0 and "length" in shown.said and (tmp_path / "a.html").read_text().startswith("<!doctype")
    assert mlx_tts("inspect", "a.wav").exit_code == 2
    for name, code in (("missing.wav", 3), ("a.html", 2), ("pictures", 2)):
        fault = mlx_tts("inspect", name, "-o", "d.html")
        assert fault.exit_code in (code, 3) and fault.said.count("\n") == 1 and not (tmp_path / "d.html").exists()


@given(data=st.data())
@settings(
    max_examples=40,
    derandomize=True,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
def test_a_damaged_record_is_read_or_refused_in_a_line(run, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    run[0].save(folder / "codes.npz")
    sound = (folder / "codes.npz").read_bytes()
    (folder / "codes.npz").write_bytes(data.draw(damaged_bytes(sound)))
    outcome = mlx_tts("inspect", folder / "codes.npz")
    assert outcome.exit_code in (0, 2) and (outcome.exit_code == 0 or outcome.said.count("\n") == 1), outcome.said


@pytest.mark.parametrize("shape", [(10**12,), (2**62, 4), (-1,)])
def test_an_array_that_claims_more_than_it_holds_is_refused(run, tmp_path, shape):
    path = tmp_path / "codes.npz"
    run[0].save(path)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i2", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "new.npz", "w") as new:
        for name in old.namelist():
            new.writestr(name, header.getvalue() + bytes(64) if name == "audio.npy" else old.read(name))
    with pytest.raises(ValueError, match="no record of speech"):
        read_record(tmp_path / "new.npz")
