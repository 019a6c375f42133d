"""Formats, whole-or-nothing files, pipes and the player."""

import io
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
import soundfile

from mlx_rvqspec import audio

RATE = 24000
TONE = (0.5 * np.sin(np.arange(RATE) * 0.1)).astype(np.float32)


def test_samples_are_rounded_and_clipped():
    pcm = audio.to_pcm16(np.array([0, 1, -1, 1.5, -9, 0.5 / 32767, 0.6 / 32767]))
    assert pcm.tolist() == [0, 32767, -32767, 32767, -32767, 0, 1]
    assert pcm.dtype == "<i2"


@pytest.mark.parametrize("name", audio.FORMATS)
def test_every_format_reads_back(tmp_path, name):
    path = tmp_path / f"a.{name}"
    with audio.open_file(path, RATE, comment="seed 7") as write:
        for start in range(0, RATE, 1920):
            write(TONE[start : start + 1920])
    if name == "pcm":
        samples = np.frombuffer(path.read_bytes(), "<i2") / 32767
    else:
        with soundfile.SoundFile(path) as sound:
            assert (sound.samplerate, sound.channels, sound.comment) == (RATE, 1, "seed 7")
            samples = sound.read()
    assert len(samples) == RATE or name == "mp3"  # whole frames only
    assert np.corrcoef(samples[:RATE], TONE)[0, 1] > 0.99
    assert list(tmp_path.iterdir()) == [path]


def test_wav_sizes_are_right_for_simple_readers(tmp_path):
    path = tmp_path / "a.wav"
    with audio.open_file(path, RATE, comment="odd") as write:
        write(TONE)
    with wave.open(str(path)) as reader:
        assert reader.getnframes() == RATE
        assert reader.readframes(RATE) == audio.to_pcm16(TONE).tobytes()
    assert int.from_bytes(path.read_bytes()[4:8], "little") == path.stat().st_size - 8


def test_a_wav_without_a_sample_is_valid(tmp_path):
    with audio.open_file(tmp_path / "a.wav", RATE):
        pass
    assert soundfile.info(tmp_path / "a.wav").frames == 0


class Pipe(io.RawIOBase):
    """A stream that only takes bytes, as a pipe does."""

    def __init__(self):
        self.data = b""

    def writable(self):
        return True

    def write(self, data):
        self.data += bytes(data)
        return len(data)

    def seek(self, *_):
        raise io.UnsupportedOperation("Illegal seek")


def test_a_piped_wav_is_one_stream_of_unknown_length():
    pipe = Pipe()
    write = audio.pipe_writer(pipe, RATE)  # pyright: ignore[reportArgumentType]
    write(TONE[:100])
    write(TONE[100:])
    header, data = pipe.data[:44], pipe.data[44:]
    assert header[4:8] == header[40:44] == b"\xff\xff\xff\xff"
    assert data == audio.to_pcm16(TONE).tobytes()
    samples, rate = soundfile.read(io.BytesIO(pipe.data))
    assert (len(samples), rate) == (RATE, RATE)


def test_piped_pcm_has_no_header():
    pipe = Pipe()
    audio.pipe_writer(pipe, RATE, "pcm")(TONE)  # pyright: ignore[reportArgumentType]
    assert pipe.data == audio.to_pcm16(TONE).tobytes()


@pytest.mark.parametrize(
    "target, asked, format",
    [("a.wav", None, "wav"), ("a.FLAC", None, "flac"), ("-", None, "wav"), ("-", "pcm", "pcm")]
    + [("a.b/c.ogg", "ogg", "ogg"), ("a", "mp3", "mp3"), ("a.dat", "pcm", "pcm")],
)
def test_format_comes_from_the_name_or_the_option(target, asked, format):
    assert audio.choose_format(target, asked) == format


@pytest.mark.parametrize(
    "target, asked, reason",
    [("a.xyz", None, "no known format"), ("a", None, "no known format"), ("a.wav", "flac", "drop one")]
    + [("a.wav", "m4a", "unknown format"), ("-", "flac", "cannot be piped")],
)
def test_unknown_and_conflicting_formats_are_refused(target, asked, reason):
    with pytest.raises(ValueError, match=reason):
        audio.choose_format(target, asked)


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, ZeroDivisionError])
def test_an_interrupted_file_never_appears_and_leaves_the_old_one(tmp_path, name, error):
    path = tmp_path / name
    path.write_bytes(b"old")
    with pytest.raises(error):
        with audio.open_file(path, RATE) as write:
            write(TONE)
            raise error
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg", "a.mp3"])
def test_a_full_disk_is_an_os_error_and_leaves_nothing(tmp_path, name):
    resource = pytest.importorskip("resource")
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, 10 * RATE).astype(np.float32)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limit[1]))  # Python ignores SIGXFSZ: writing fails
    try:
        with pytest.raises(OSError):
            with audio.open_file(tmp_path / name, RATE) as write:
                write(noise)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", ["folder.wav", "missing/a.wav", "file.wav/a.wav"])
def test_a_place_that_cannot_be_written_is_refused(tmp_path, target):
    (tmp_path / "folder.wav").mkdir()
    (tmp_path / "file.wav").touch()
    with pytest.raises((ValueError, OSError)):
        with audio.open_file(tmp_path / target, RATE):
            pytest.fail("opened")


def test_a_device_is_not_replaced_by_a_file():
    with pytest.raises(ValueError, match="not a file"):
        with audio.open_file("/dev/null", RATE, format="wav"):
            pytest.fail("opened")
    assert not Path("/dev/null").is_file()


def test_the_player_wakes_the_device_before_the_first_sample(device):
    with audio.Player(RATE) as player:
        assert player.stream.calls == []  # a device that waits for a slow model falls asleep again
        player.write(TONE[:100])
        player.write(TONE[100:])
    heard = np.concatenate(player.stream.heard)
    assert player.stream.options == {"samplerate": RATE, "channels": 1, "dtype": "float32"}
    assert not heard[:-RATE].any() and len(heard) >= RATE + RATE // 10
    assert np.array_equal(heard[-RATE:], TONE) and heard.dtype == np.float32
    assert player.stream.calls == ["start", "stop", "close"]


def test_the_player_falls_silent_at_once_when_interrupted(device):
    with pytest.raises(KeyboardInterrupt):
        with audio.Player(RATE) as player:
            player.write(TONE)
            raise KeyboardInterrupt
    assert player.stream.calls == ["start", "abort", "close"]


def test_a_missing_player_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(RuntimeError, match="pip install sounddevice"):
        audio.Player(RATE)
