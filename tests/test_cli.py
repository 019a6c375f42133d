"""mlx-tts on the tiny checkpoint: what it writes where, what it refuses, and how it ends."""

import io
import json
import os
import pty
import shutil
import signal
import sys
import time

import numpy as np
import pytest
import soundfile
from conftest import TINY

from mlx_rvqspec import cli
from mlx_rvqspec.audio import to_pcm16
from mlx_rvqspec.generate import load

SEED = 3  # with ryan and "Hello.": 7 frames, then the end
VOICE = ["--model", TINY, "--speaker", "ryan"]
HELLO = ["speak", "Hello.", *VOICE, "--seed", SEED]
LONG = ["speak", "Hello.", *VOICE, "--greedy", "--max-frames", "999"]  # 127 frames


@pytest.fixture(scope="module")
def hello():
    return load(TINY).speak("Hello.", speaker="ryan", seed=SEED, chunk_frames=4)


@pytest.fixture
def run(monkeypatch, capfdbinary, tmp_path):
    """A function that runs mlx-tts in this process, in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, stdin=b""):
        monkeypatch.setattr(sys, "argv", ["mlx-tts", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = cli.run()
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    return run


@pytest.fixture
def unloadable(tmp_path):
    """The tiny model without its weights: whoever gets to loading them fails with exit code 3."""
    folder = tmp_path / "model"
    shutil.copytree(TINY, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.npz"))
    return folder


def samples(data):
    return soundfile.read(io.BytesIO(data) if isinstance(data, bytes) else data, dtype="int16")[0]


def test_a_file_holds_the_same_samples_as_the_engine_gives(run, hello, tmp_path):
    code, out, err = run(*HELLO, "-o", "hello.wav")
    assert (code, out) == (0, b"")
    assert np.array_equal(samples("hello.wav"), to_pcm16(hello.audio))
    assert [path.name for path in tmp_path.iterdir()] == ["hello.wav"]
    assert err.startswith("hello.wav: 7 frames, 0.56 s of speech in ") and err.endswith(", seed 3\n")
    with soundfile.SoundFile("hello.wav") as sound:
        assert sound.comment == "mlx-tts seed 3"


@pytest.mark.parametrize("format", ["wav", "pcm"])
def test_a_pipe_gets_the_same_samples_and_nothing_else(run, hello, format):
    code, out, err = run(*HELLO, "-o", "-", "--format", format)
    assert code == 0
    assert np.array_equal(samples(out) if format == "wav" else np.frombuffer(out, "<i2"), to_pcm16(hello.audio))
    assert err.startswith("stdout: 7 frames")


def test_text_comes_from_stdin(run, hello):
    code, _, _ = run("speak", "-", *HELLO[2:], "-o", "a.wav", stdin=b"\xef\xbb\xbfHello.\r\n")
    assert code == 0 and np.array_equal(samples("a.wav"), to_pcm16(hello.audio))


def test_a_drawn_seed_is_told_and_repeats_the_speech(run):
    arguments = ["speak", "Hi", *VOICE, "--max-frames", 3, "--json", "-o"]
    _, out, _ = run(*arguments, "a.wav")
    run(*arguments, "b.wav", "--seed", json.loads(out)["seed"])
    assert np.array_equal(samples("a.wav"), samples("b.wav"))


def test_json_is_one_object_on_stdout(run):
    code, out, err = run(*HELLO, "-o", "a.wav", "--json", "--language", "en-US")
    facts = json.loads(out)
    assert (code, err) == (0, "")
    assert {"output": "a.wav", "seed": 3, "speaker": "ryan", "language": "english"}.items() <= facts.items()
    assert facts["finish_reason"] == "stop" and facts["realtime_factor"] > 0 and facts["frames"] > 0


def test_speculation_that_cannot_run_is_refused_and_auto_says_why_it_is_off(run):
    facts = json.loads(run(*HELLO, "-o", "a.wav", "--json", "--drafter", "none")[1])
    assert (facts["decode"], facts["codes_per_round"]) == ("plain", 1) and "no drafter" in facts["why_plain"]
    code, _, err = run(*HELLO, "-o", "b.wav", "--decode", "spec", "--drafter", "none")
    assert code == 2 and "no drafter" in err
    assert run(*HELLO, "-o", "b.wav", "--drafter", "missing")[0] == 3


def test_json_makes_room_for_piped_sound(run):
    _, out, err = run(*HELLO, "-o", "-", "--json")
    assert out.startswith(b"RIFF") and json.loads(err)["output"] == "stdout"


def test_quiet_says_nothing(run):
    assert run(*HELLO, "-o", "a.wav", "--quiet") == (0, b"", "")


@pytest.mark.parametrize("output", [[], ["--play", "-o", "a.wav"]])
def test_the_player_gets_every_sample(run, device, hello, tmp_path, output):
    assert run(*HELLO, *output)[0] == 0
    heard = np.concatenate(device[0].heard)
    assert np.array_equal(heard[-len(hello.audio) :], hello.audio)
    assert device[0].calls == ["start", "stop", "close"]
    assert [path.name for path in tmp_path.iterdir()] == output[2:]


def test_without_a_player_the_next_free_file_is_written_and_named(run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    code, out, err = run(*HELLO)
    assert (code, out) == (0, b"") and "cannot play" in err and "pip install sounddevice; writing speech.wav" in err
    assert run(*HELLO, "--format", "flac")[0] == 0
    assert json.loads(run(*HELLO, "--json")[1])["output"] == "speech2.wav"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["speech.flac", "speech.wav", "speech2.wav"]
    assert run(*HELLO, "--play")[0] == 2


def test_sampling_options_reach_the_engine(run):
    engine = load(TINY)
    greedy = cli.replace(engine.sampling, do_sample=False, subtalker_do_sample=False, max_frames=4)
    expected = engine.speak("Hello.", speaker="ryan", sampling=greedy, text_feed="stream", chunk_frames=3)
    code, _, err = run(
        *HELLO, "-o", "a.wav", "--greedy", "--max-frames", 4, "--text-feed", "stream", "--chunk-frames", 3
    )
    assert code == 4 and np.array_equal(samples("a.wav"), to_pcm16(expected.audio))


def test_speech_that_does_not_end_is_kept_with_its_own_exit_code(run):
    code, _, err = run(*HELLO, "-o", "a.wav", "--max-frames", 5)
    assert code == 4 and "length after 5 frames" in err.splitlines()[-1]
    assert len(samples("a.wav")) == 5 * 1920


def test_clean_removes_markdown_before_speaking(run):
    code, _, _ = run("speak", "# **Hello.** 🙂", *HELLO[2:], "-o", "a.wav", "--clean")
    run(*HELLO, "-o", "b.wav")
    assert code == 0 and np.array_equal(samples("a.wav"), samples("b.wav"))


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["", "-o", "a.wav"], "text is empty"),
        (["\u200b", "-o", "a.wav"], "text is empty"),
        (["-", "-o", "a.wav"], "text is empty"),
        (["...", "-o", "a.wav"], "nothing to say"),
        (["🙂", "--clean", "-o", "a.wav"], "text is empty"),
        (["Hi", "-o", "a.xyz"], "no known format"),
        (["Hi", "-o", "a"], "no known format"),
        (["Hi", "-o", "a.wav", "--format", "flac"], "drop one"),
        (["Hi", "--format", "m4a"], "unknown format"),
        (["Hi", "-o", "-", "--format", "mp3"], "cannot be piped"),
        (["Hi", "-o", "old.wav"], "old.wav exists; --force"),
        (["Hi", "-o", "model"], "is a folder or device"),
        (["Hi", "-o", "/dev/null", "--format", "wav", "--force"], "is a folder or device"),
        (["Hi", "-o", "missing/a.wav"], "no folder missing"),
        (["Hi", "-o", "old.wav/a.wav"], "no folder old.wav"),
        (["Hi", "-o", "a.wav", "--speaker", "cedar"], "this model has serena, vivian"),
        (["Hi", "-o", "a.wav", "--speaker", "rian"], "did you mean ryan?"),
        (["Hi", "-o", "a.wav", "--language", "klingon"], "expected auto, english"),
        (["Hi", "-o", "a.wav", "--instruct", "sad"], "ignores instructions"),
        (["Hi", "-o", "a.wav", "--top-p", "2"], "top_p is 2.0"),
        (["Hi", "-o", "a.wav", "--temperature", "-1"], "temperature"),
        (["Hi", "-o", "a.wav", "--max-frames", "0"], "max_frames is 0"),
        (["Hi", "-o", "a.wav", "--seed", "-1"], "--seed"),
        (["Hi", "-o", "a.wav", "--chunk-frames", "0"], "--chunk-frames"),
        (["Hi", "-o", "a.wav", "--decode", "fast"], "--decode"),
        (["Hi", "-o", "a.wav", "--nonsense"], "--nonsense"),
        ([], "TEXT"),
    ],
)
def test_a_usage_fault_is_one_line_before_the_weights_load(run, unloadable, tmp_path, arguments, reason):
    (tmp_path / "old.wav").write_bytes(b"old")
    speaker = [] if "--speaker" in arguments else ["--speaker", "ryan"]
    code, out, err = run("speak", *arguments, "--model", unloadable, *speaker)
    assert (code, out) == (2, b"")
    assert err.startswith("mlx-tts: ") and err.count("\n") == 1 and reason in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "old.wav"]
    assert (tmp_path / "old.wav").read_bytes() == b"old"


def test_names_match_without_case_spaces_and_dashes(run):
    for name in ("RYAN", "Ono Anna", "ono-anna"):
        code, out, _ = run(
            "speak", "Hi", "--model", TINY, "--speaker", name, "--max-frames", 2, "--json", "-o", f"{name}.wav"
        )
        assert json.loads(out)["speaker"] == name.lower().replace(" ", "_").replace("-", "_")


@pytest.mark.parametrize("model", ["missing", "folder", "file", "unloadable"])
def test_a_model_that_cannot_be_used_is_one_line_and_leaves_nothing(run, unloadable, tmp_path, model):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    name = unloadable if model == "unloadable" else model
    before = sorted(tmp_path.iterdir())
    code, out, err = run("speak", "Hi", "--model", name, "--speaker", "ryan", "-o", "a.wav")
    assert (code, out) == (3, b"") and err.startswith("mlx-tts: ") and err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_faults_are_json_too(run):
    code, _, err = run("speak", "", "--json", "-o", "a.wav")
    assert json.loads(err) == {"error": "text is empty", "exit_code": code} and code == 2


def test_force_replaces_a_file(run, hello, tmp_path):
    (tmp_path / "a.wav").write_bytes(b"old")
    assert run(*HELLO, "-o", "a.wav", "--force")[0] == 0
    assert len(samples("a.wav")) == len(hello.audio)


def test_digits_alone_are_spoken_with_a_hint(run):
    code, _, err = run("speak", "1 2 3", *HELLO[2:], "-o", "a.wav", "--max-frames", 2)
    assert code == 4 and "--language" in err.splitlines()[0]
    assert "no letters" not in run("speak", "1", *HELLO[2:], "-o", "b.wav", "--max-frames", 2, "--language", "en")[2]


def test_voices_are_one_a_line(run, unloadable):
    code, out, _ = run("voices", "--model", unloadable)
    assert code == 0 and out.split()[:4] == [b"serena", b"vivian", b"uncle_fu", b"ryan"]
    assert json.loads(run("voices", "--model", unloadable, "--json")[1])[3] == "ryan"


def test_info_reads_no_weights(run, unloadable):
    code, out, _ = run("info", "--model", unloadable)
    assert code == 0 and b"speakers       serena, vivian" in out
    facts = json.loads(run("info", "--model", unloadable, "--json")[1])
    assert facts["sample_rate"] == 24000 and facts["kind"] == "custom_voice" and facts["blas"]
    assert "download it again" in facts["measured"][0]


def test_info_says_what_would_run(run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plain, built_in = (json.loads(run("info", *model, "--json")[1]) for model in (["--model", TINY], []))
    assert plain["precision"] == "float32" and plain["decoding"].startswith("plain: this model has no drafter")
    engine = load()
    assert f"speculative, {engine.num_nodes} rows a round, with {built_in['model']}" in built_in["decoding"]


def test_help_fits_a_screen_and_names_the_commands(run):
    for arguments in ([], ["--help"]):
        code, out, _ = run(*arguments)
        assert code == 0 and len(out.splitlines()) <= 24
        assert all(word in out for word in (b"speak", b"voices", b"info", b"hello.wav"))


def test_sound_is_not_written_to_a_terminal(start):
    ours, theirs = pty.openpty()
    process = start(*HELLO, "-o", "-", stdout=theirs)
    _, err = process.communicate(timeout=120)
    os.close(theirs)
    assert process.returncode == 2 and b"stdout is a terminal" in err
    os.close(ours)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a device that is always full")
def test_a_full_disk_behind_the_pipe_is_one_line(start):
    with open("/dev/full", "wb") as full:
        process = start(*HELLO, "-o", "-", stdout=full)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 3 and err == b"mlx-tts: [Errno 28] No space left on device\n"


def test_progress_is_shown_on_a_terminal_only(start):
    ours, theirs = pty.openpty()
    process = start(*HELLO, "-o", "a.wav", stderr=theirs)
    process.communicate(timeout=120)
    os.close(theirs)
    shown = os.read(ours, 1 << 16)
    os.close(ours)
    assert process.returncode == 0 and b"loading" in shown and b"seed 3" in shown
    _, err = start(*HELLO, "-o", "b.wav").communicate(timeout=120)
    assert b"loading" not in err and b"seed 3" in err


def test_a_reader_that_leaves_ends_the_run_without_a_traceback(start):
    process = start(*LONG, "-o", "-")
    assert process.stdout.read(1000).startswith(b"RIFF")
    process.stdout.close()
    assert process.wait(timeout=120) == 141
    assert process.stderr.read() == b""


def after_some_frames(process, folder):
    """Wait until some sound has reached the unfinished file."""
    deadline = time.monotonic() + 120
    while not any(part.stat().st_size > 4000 for part in folder.glob("*.part")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", ["a.wav", "a.ogg"])
def test_a_cancelled_run_leaves_no_file(start, tmp_path, number, name):
    process = start(*LONG, "-o", name)
    after_some_frames(process, tmp_path)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, b"")
    assert not list(tmp_path.iterdir())


def test_a_killed_run_leaves_no_file_under_the_name_and_is_not_in_the_way(start, tmp_path):
    process = start(*LONG, "-o", "a.wav")
    after_some_frames(process, tmp_path)
    process.kill()
    process.wait(timeout=120)
    assert not (tmp_path / "a.wav").exists()
    assert start(*HELLO, "-o", "a.wav").wait(timeout=120) == 0
    assert len(samples(tmp_path / "a.wav")) == 7 * 1920


@pytest.mark.slow
@pytest.mark.parametrize("delay_ms", range(0, 5000, 100))
def test_a_signal_at_any_moment_leaves_a_whole_file_or_none(start, tmp_path, delay_ms):
    process = start(*HELLO, "-o", "a.wav")
    time.sleep(delay_ms / 1000)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode in (0, 130, -signal.SIGTERM)  # the last before Python gets to install a handler
    assert [path.name for path in tmp_path.iterdir()] == (["a.wav"] if (tmp_path / "a.wav").exists() else [])
    if (tmp_path / "a.wav").exists():
        assert len(samples(tmp_path / "a.wav")) == 7 * 1920


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("sp", ["speak"]), ("speak --dec", ["--decode"]), ("speak --decode ", ["auto", "plain", "spec"]), ("no", [])],
)
def test_the_shell_completes_commands_options_and_values(start, monkeypatch, typed, offered):
    words = ["mlx-tts", *typed.split(" ")]
    completion = {
        "_MLX_TTS_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    for name, value in completion.items():
        monkeypatch.setenv(name, value)
    out, _ = start().communicate(timeout=120)
    assert out.decode().split() == offered


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(["speek", "Hi"], "'speak'"), (["speak", "Hi", "--speker", "x"], "--speaker"), (["inof"], "'info'")],
)
def test_a_misspelt_command_or_option_names_the_nearest(run, typed, meant):
    code, _, err = run(*typed)
    assert code == 2 and meant in err and err.count("\n") == 1
