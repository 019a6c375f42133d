"""What only someone in a bad mood would type: it is spoken, or refused in a line, and costs neither memory nor time."""

import os
import subprocess
import threading

import pytest
from conftest import MLX_TTS, ROOT, TINY
from damage import mlx_tts as attempt
from damage import working_in
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_cli import HELLO, VOICE, run, samples  # noqa: F401  a fixture and more

from mlx_rvqspec.generate import load
from mlx_rvqspec.text import MAX_BYTES

OPTIONS = ["--temperature", "--top-k", "--top-p", "--repetition-penalty", "--subtalker-temperature", "--seed"]
OPTIONS += ["--subtalker-top-k", "--subtalker-top-p", "--chunk-frames", "--passage-s", "--paragraph-pause-ms"]
NUMBERS = ["0", "-1", "1", "0.5", "1e-320", "1e-9", "1e30", "1e300", "nan", "inf", "-inf", "", "x", "0x10", "1_0", "٣"]
NUMBERS += [str(10**9), str(2**31), str(2**64), "9" * 400, "1e999", "1,5", " 7 "]
OTHERS = [
    ["--greedy"],
    ["--decode", "plain"],
    ["--text-feed", "stream"],
    ["--text-feed", "full"],
    ["--quiet", "--json"],
]
OTHERS += [["--on-runaway", policy] for policy in ("trim", "retry", "error")] + [["--dtype", "bfloat16"], ["--clean"]]
LOOSE = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}
TEXTS = ["Hello.\n\nHello."] * 3 + ["a\0b", "\u202eabc \u200f1", "مرحبا بالعالم", "שלום עולם", "𝕳𝖊𝖑𝖑𝖔"]
TEXTS += ["e" + "\u0301" * 500, "\x1b[31mred\x1b[0m [b]bold[/b]", "a" * 3000, "1" * 500, "\ud83d", "😀😀", "-"]
TEXTS += ["--help", "🏳\ufe0f\u200d🌈 ok", "\U000e0041b"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hostile")


def refused_or_spoken(folder, arguments, text="Hello.") -> None:
    with working_in(folder):
        outcome = attempt(*arguments, "--force", "-o", "a.wav", "--", text)
    assert outcome.exit_code in (0, 2, 3, 4), outcome
    if outcome.exit_code in (2, 3):
        assert outcome.said.count("\n") == 1 and len(outcome.said) < 1500, outcome
    assert outcome.seconds < 30 and outcome.peak_bytes < 512 << 20, outcome
    assert {path.name for path in folder.iterdir()} <= {"a.wav"}


@given(
    text=st.sampled_from(TEXTS),
    numbers=st.dictionaries(st.sampled_from(OPTIONS), st.sampled_from(NUMBERS), max_size=3),
    others=st.lists(st.sampled_from(OTHERS), max_size=2),
)
@settings(max_examples=60, derandomize=True, **LOOSE)
def test_odd_texts_numbers_and_combinations(folder, text, numbers, others):
    options = [word for option in (*numbers.items(), *others) for word in option]
    refused_or_spoken(folder, ["speak", *VOICE, "--max-frames", 3, *options], text)


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
def test_every_odd_number_for_every_option(folder, option):
    for number in NUMBERS:
        refused_or_spoken(folder, ["speak", *VOICE, "--max-frames", 3, option, number])


def test_a_text_without_end_is_refused(run):  # noqa: F811
    code, _, err = run("speak", "-f", "/dev/zero", *VOICE, "-o", "a.wav")
    assert code == 2 and f"more than {MAX_BYTES >> 20} MB" in err and err.count("\n") == 1


@pytest.mark.parametrize("pause_ms", [10**9, "9" * 400])
def test_a_pause_beyond_reason_is_refused_before_the_weights(run, pause_ms):  # noqa: F811
    code, _, err = run(*HELLO, "-o", "a.wav", "--paragraph-pause-ms", pause_ms)
    assert code == 2 and "600000" in err and err.count("\n") == 1


def test_a_chunk_beyond_reason_is_refused_before_the_weights():
    with pytest.raises(ValueError, match="1 to 750"):
        load(TINY).stream("Hello.", speaker="ryan", chunk_frames=10**9)


def test_a_model_folder_with_a_pipe_in_it_does_not_hang(run, tmp_path):  # noqa: F811
    folder = tmp_path / "model"
    folder.mkdir()
    for path in TINY.iterdir():
        (folder / path.name).symlink_to(path)
    for name in ("merges.txt", "config.json", "vocab.json", "model.safetensors", "generation_config.json"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
        code, _, err = run("speak", "Hi", "--model", folder, "--speaker", "ryan", "-o", "a.wav")
        assert code == 3 and name in err and err.count("\n") == 1
        (folder / name).unlink()
        (folder / name).symlink_to(TINY / name)


@pytest.mark.parametrize(
    "model", ["", "/", "/etc", "/dev/null", "~nobody-of-this-name/x", "-", "a/b/c", "..", "a" * 5000]
)
def test_what_is_no_model_is_a_line(run, model):  # noqa: F811
    code, _, err = run("speak", "Hi", f"--model={model}", "-o", "a.wav")
    assert code == 3 and err.startswith("mlx-tts: ") and err.count("\n") == 1


def test_links_are_followed_and_stay(run, tmp_path):  # noqa: F811
    (tmp_path / "far").mkdir()
    (tmp_path / "link.wav").symlink_to(tmp_path / "far" / "a.wav")
    assert run(*HELLO, "-o", "link.wav")[0] == 0  # to nothing yet
    assert (tmp_path / "link.wav").is_symlink() and len(samples("far/a.wav")) == 7 * 1920
    assert run(*HELLO, "-o", "link.wav")[0] == 2
    assert run(*HELLO, "-o", "link.wav", "--force")[0] == 0 and (tmp_path / "link.wav").is_symlink()
    (tmp_path / "lost.wav").symlink_to(tmp_path / "nowhere" / "a.wav")
    code, _, err = run(*HELLO, "-o", "lost.wav")
    assert code == 3 and err.count("\n") == 1 and (tmp_path / "lost.wav").is_symlink()


@pytest.mark.parametrize(
    "name", ["-.wav", "a" * 251 + ".wav", "ü" * 125 + ".wav", "a b\n.wav", "\udcff.wav", "[b].wav"]
)
def test_any_name_that_the_system_takes_is_written(run, tmp_path, name):  # noqa: F811
    code, _, err = run(*HELLO, "-o", f"./{name}")
    assert code == 0 and [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["a" * 300 + ".wav", "a.wav/", "", ".", "..", "a/../../x/b.wav"])
def test_a_name_that_it_does_not_take_is_a_line(run, tmp_path, name):  # noqa: F811
    code, _, err = run(*HELLO, "-o", name)
    assert code in (2, 3) and err.count("\n") == 1 and not list(tmp_path.iterdir())


def test_runs_at_once_on_one_file_leave_a_whole_one(start, tmp_path):
    runs = [start(*HELLO, "-o", "a.wav", "--force") for _ in range(3)]
    for process in runs:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"] and len(samples(tmp_path / "a.wav")) == 7 * 1920


def test_without_a_home_or_a_cache_that_can_be_written_it_speaks(tmp_path):
    for environment in ({"HOME": "/proc/nowhere"}, {"XDG_CACHE_HOME": "/proc/nowhere"}, {"LC_ALL": "C"}, {}):
        done = subprocess.run(
            [*MLX_TTS, *map(str, HELLO), "-o", "a.wav", "--force"],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
            capture_output=True,
            timeout=300,
        )
        assert done.returncode == 0 and b"seed 3" in done.stderr, done.stderr


def test_a_drafter_that_could_not_be_kept_is_not_fitted(run, monkeypatch):  # noqa: F811
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    monkeypatch.setattr("mlx_rvqspec.fit.run.make_drafter", lambda *_, **__: pytest.fail("it was fitted first"))
    code, _, err = run("fit", TINY, "--quiet")
    assert code == 3 and "/proc/nowhere" in err and err.count("\n") == 1


def test_a_port_that_is_taken_is_found_out_before_the_model_loads(run, monkeypatch):  # noqa: F811
    import socket

    monkeypatch.setattr("mlx_rvqspec.commands.serve.load", lambda *_, **__: pytest.fail("it was loaded first"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, err = run("serve", "--port", taken.getsockname()[1])
    assert code == 2 and "cannot listen on 127.0.0.1" in err and err.count("\n") == 1
    assert run("serve", "--host", "no.such.host.invalid")[0] == 2


def test_an_engine_is_not_hurt_by_what_it_refuses(folder):
    engine, failures = load(TINY), []

    def refuse(**options) -> None:
        try:
            engine.stream("Hi", **{"speaker": "ryan", **options})
            failures.append(options)
        except ValueError:
            pass

    odd = [{"seed": -1}, {"seed": "x"}, {"seed": 1.0}, {"passage_s": float("nan")}, {"paragraph_pause_s": 1e9}]
    odd += [{"chunk_frames": 0}, {"decode": "fast"}, {"on_runaway": ""}, {"text_feed": "x"}, {"speaker": "nobody"}]
    threads = [threading.Thread(target=refuse, kwargs=options) for options in odd]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(engine.speak("Hello.", speaker="ryan", seed=3).codes) == 7
