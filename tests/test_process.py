"""mlx-tts as a process among others: signals at bad moments, and standard streams that are closed, full or left."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from conftest import ROOT
from test_cli import HELLO, LONG, SEED, VOICE, after_some_frames, samples

from mlx_rvqspec.audio import to_pcm16
from mlx_rvqspec.generate import load

NUMBERS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def run_program(program: str, folder, **options) -> subprocess.CompletedProcess:
    """What became of a program that has mlx-tts for itself and may do things to it first."""
    heard = "for number in (1, 2, 15): signal.signal(number, signal.SIG_DFL)"  # nohup and & have some ignored
    code = f"import os, signal, sys, time\n{heard}\nfrom mlx_rvqspec import cli\n" + textwrap.dedent(program)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, timeout=120, **options
    )


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_while_the_model_is_at_work_inside_of_mlx_ends_in_130(tmp_path, number):
    """The thread that loads comes back from MLX when the interpreter is half gone; that used to abort."""
    done = run_program(
        f"""
        import threading
        import mlx.core as mx
        from mlx_rvqspec import generate

        def busy(*arguments, **options):
            threading.Timer(0, lambda: os.kill(os.getpid(), {int(number)})).start()
            x = mx.ones((600, 600))
            for _ in range(200):
                x = x @ x / 600
                mx.eval(x)

        generate.load_model = busy
        sys.argv = {["mlx-tts", *map(str, HELLO), "-o", "a.wav"]!r}
        cli.main()
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"") and not list(tmp_path.iterdir())


def test_a_second_signal_ends_a_run_that_is_still_tidying_up(tmp_path):
    done = run_program(
        f"""
        from mlx_rvqspec import generate

        def load_model(*arguments, **options):
            os.kill(os.getpid(), signal.SIGINT)

        def slow(*arguments):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)

        generate.load_model = load_model
        import contextlib

        @contextlib.contextmanager
        def progress(wanted):
            try:
                yield cli.silent
            finally:
                slow()

        cli.progress = progress
        sys.argv = {["mlx-tts", *map(str, HELLO), "-o", "a.wav"]!r}
        cli.main()
        """,
        tmp_path,
    )
    assert done.returncode == 130 and not list(tmp_path.iterdir())


def test_a_signal_that_python_drops_still_counts(tmp_path):
    """In a destructor, or a callback of an import, an exception goes nowhere."""
    done = run_program(
        f"""
        from mlx_rvqspec import generate

        class Dropped:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0)

        def drain(*arguments):
            Dropped()
            time.sleep(60)

        cli.drain = drain
        sys.argv = {["mlx-tts", *map(str, HELLO), "-o", "a.wav"]!r}
        cli.main()
        """,
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (130, b"") and not list(tmp_path.iterdir())


def test_a_signal_that_was_ignored_from_the_start_stays_so(tmp_path):
    done = run_program(
        f"""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        drain = cli.drain
        cli.drain = lambda *arguments: os.kill(os.getpid(), signal.SIGHUP) or drain(*arguments)
        sys.argv = {["mlx-tts", *map(str, HELLO), "-o", "a.wav"]!r}
        cli.main()
        """,
        tmp_path,
    )
    assert done.returncode == 0 and [path.name for path in tmp_path.iterdir()] == ["a.wav"]


def test_a_file_that_ends_too_early_is_no_cancelled_run(tmp_path):
    done = run_program(
        """
        from mlx_rvqspec.commands import info

        def resolve(model):
            raise EOFError("nothing left")

        info.resolve = resolve
        sys.argv = ["mlx-tts", "info"]
        cli.main()
        """,
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (3, b"mlx-tts: a file ends too early: nothing left\n")


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (1, 2), (0, 1, 2)])
def test_closed_streams_are_nobodys_and_their_numbers_are_not_taken(start, tmp_path, closed):
    expected = to_pcm16(load(VOICE[1]).speak("Hello.", speaker="ryan", seed=SEED, chunk_frames=4).audio)
    process = start(*HELLO, "-o", "a.wav", preexec_fn=lambda: [os.close(number) for number in closed])
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and out == b"" and (b"seed 3" in err) == (2 not in closed)
    assert (samples(tmp_path / "a.wav") == expected).all()


def test_piped_sound_is_only_sound_with_stderr_closed(start):
    expected = to_pcm16(load(VOICE[1]).speak("Hello.", speaker="ryan", seed=SEED, chunk_frames=4).audio)
    process = start(*HELLO, "-o", "-", "--format", "pcm", preexec_fn=lambda: os.close(2))
    assert process.communicate(timeout=120)[0] == expected.tobytes() and process.returncode == 0


@pytest.mark.parametrize("command", ["info", "voices", "--help"])
def test_a_result_that_nobody_reads_ends_in_141_without_a_word(start, command):
    ours, theirs = os.pipe()
    os.close(ours)
    process = start(command, stdout=theirs)
    os.close(theirs)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a device that is always full")
def test_full_disks_behind_the_streams(start, tmp_path):
    with open("/dev/full", "wb") as full:
        process = start("info", stdout=full)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 3 and err == b"mlx-tts: [Errno 28] No space left on device\n"
        assert start(*HELLO, "-o", "a.wav", stderr=full).wait(timeout=120) == 0  # messages are lost, the sound is not
    assert (tmp_path / "a.wav").stat().st_size > 20_000


def test_words_beyond_the_locale_are_no_fault(start, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    process = start("speak", "Grüße aus Köln.", *VOICE, "--dry-run")
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and out == b"Gr\\xfc\\xdfe aus K\\xf6ln.\n"


def test_what_was_spoken_is_kept_on_demand(start, tmp_path):
    process = start(*LONG, "-o", "a.wav", "--keep-partial", "--json")
    after_some_frames(process, tmp_path)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    facts = json.loads(out)
    assert (process.returncode, err, facts["finish_reason"]) == (130, b"", "cancelled")
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"]
    assert 1920 <= 1920 * facts["frames"] <= len(samples(tmp_path / "a.wav")) < 127 * 1920


def test_a_cancelled_pipe_is_cancelled(start):
    process = start(*LONG, "-o", "-")
    assert process.stdout.read(1000).startswith(b"RIFF")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, b"")
