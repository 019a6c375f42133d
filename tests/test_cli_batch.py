"""mlx-tts batch: every row a file, whatever happens in between, and nothing outside the folder."""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import MLX_TTS, ROOT, TINY
from test_cli import run, samples, unloadable  # noqa: F401  fixtures

from mlx_rvqspec.audio import to_pcm16
from mlx_rvqspec.generate import load
from mlx_rvqspec.manifest import Record, groups_of, key_of, read_rows

DEFAULTS = {"speaker": None, "voice": None, "language": "auto", "instruct": None, "seed": 0}
TEXTS = ["Hello.", "Yes, I am.", "Come in.", "A text that is longer than the others.", "Wait.", "Thanks."]
OPTIONS = ["--model", TINY, "--speaker", "ryan", "--max-frames", 10, "--batch-size", 2]


def rows(*lines: str):
    return read_rows(lines, "wav", DEFAULTS)


def hashes(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.wav")}


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("\n\n".join(json.dumps({"text": text, "seed": 3}) for text in TEXTS))
    return path


@pytest.mark.parametrize(
    "line, reason",
    [
        ('{"text": "a"', "line 1: "),
        ("[1]", "expected an object"),
        ('{"text": "a", "spaeker": "ryan"}', "did you mean speaker?"),
        ('{"text": 5}', "text is 5; expected text in quotes"),
        ('{"text": "a", "seed": -1}', "seed is -1"),
        ('{"text": "a", "seed": true}', "seed is True"),
        ('{"text": "a", "file": null}', "file is None"),
        ("", "no rows"),
        *(
            (json.dumps({"text": "a", "file": name}), "is no plain name that ends in .wav")
            for name in (
                "../a.wav",
                "/a.wav",
                "b/a.wav",
                "b\\a.wav",
                "C:a.wav",
                "..",
                ".a.wav",
                "manifest.wav",
                "a.mp3",
            )
            + ("", "a\0.wav", "a\n.wav", "x" * 300 + ".wav")
        ),
    ],
)
def test_a_row_that_cannot_be_is_refused_by_its_line(line: str, reason: str):
    with pytest.raises(ValueError) as error:
        rows(line)
    assert reason in str(error.value)
    with pytest.raises(ValueError, match="line 3: file 'A.wav' is named twice"):
        rows('{"text": "a", "file": "a.wav"}', "", '{"text": "a", "file": "A.wav"}')


def test_groups_hold_texts_of_like_length_and_do_not_depend_on_shards():
    groups = groups_of([1, 5, 2, 5, 9], 2)
    assert groups == [[4, 1], [3, 2], [0]]
    shards = [groups[part::3] for part in range(3)]
    assert sorted(number for shard in shards for group in shard for number in group) == [0, 1, 2, 3, 4]


def test_the_record_believes_only_what_it_can_check(tmp_path):
    row, other = rows('{"text": "a"}', '{"text": "b"}')
    key = key_of(row, {"model": "x"})
    (tmp_path / row.file).write_bytes(b"sound")
    Record(tmp_path, "").add(row, key, {"frames": 1})
    with (tmp_path / "manifest.jsonl").open("a") as file:
        file.write('{"file": "00002.wav", "ke')  # a run was killed here
    (tmp_path / other.file).write_bytes(b"more")
    Record(tmp_path, "").add(other, key_of(other, {}), {})
    record = Record(tmp_path, "-1-of-2")
    assert record.made(row, key) and record.made(other, key_of(other, {}))
    assert not record.made(row, key_of(row, {"model": "y"}))
    (tmp_path / row.file).write_bytes(b"other")
    assert not record.made(row, key)


def test_a_killed_run_goes_on_to_the_files_of_an_undisturbed_one(run, start, texts, tmp_path):  # noqa: F811
    arguments = ["batch", texts, *OPTIONS, "-o"]
    code, out, _ = run(*arguments, "whole", "--json")
    counts = json.loads(out)
    assert code == 4 and (counts["made"], counts["failed"]) == (6, 0) and 0 < counts["runaways"] < 6
    whole = hashes(tmp_path / "whole")
    assert sorted(whole) == [f"0000{number}.wav" for number in range(1, 7)]
    hello = load(TINY).speak("Hello.", speaker="ryan", seed=3)
    assert (samples(tmp_path / "whole" / "00001.wav") == to_pcm16(hello.audio)).all()

    process = start(*arguments, "killed")
    deadline = time.monotonic() + 200
    while not list((tmp_path / "killed").glob("manifest.jsonl")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait(timeout=60)
    before = hashes(tmp_path / "killed")
    assert 0 < len(before) < 6
    (tmp_path / "killed" / "00006.wav.123.part").write_bytes(b"half")
    counts = json.loads(run(*arguments, "killed", "--json")[1])
    assert 0 < counts["kept"] <= len(before) and counts["kept"] + counts["made"] == 6
    assert hashes(tmp_path / "killed") == whole and not list((tmp_path / "killed").glob("*.part"))

    (tmp_path / "killed" / "00002.wav").write_bytes(b"damaged")
    shards = [json.loads(run(*arguments, "killed", "--json", "--shard", part)[1]) for part in ("1/2", "2/2")]
    assert sorted(counts["made"] for counts in shards) == [0, 1] and sum(counts["kept"] for counts in shards) == 5
    assert hashes(tmp_path / "killed") == whole


def children_of(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True)
    return sorted(map(int, found.stdout.split()))


@pytest.mark.slow
def test_processes_under_mlx_launch_share_a_batch_also_when_one_is_killed(run, texts, tmp_path):  # noqa: F811
    """kill -9 of one; mlx.launch ends the other; the same command then makes the files of one process alone."""
    run("batch", texts, *OPTIONS, "-o", "whole")
    whole = hashes(tmp_path / "whole")
    arguments = [*map(str, ["batch", texts, *OPTIONS, "-o", "shared", "--json"])]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]  # its neighbour is free, or the test says so
    launch = [Path(sys.executable).with_name("mlx.launch"), "-n", "2", "--backend", "ring", "-p", str(port), "--"]
    options = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "stdin": subprocess.PIPE}
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}

    first = subprocess.Popen([*launch, *MLX_TTS, *arguments], **options)
    deadline = time.monotonic() + 300
    while not list((tmp_path / "shared").glob("manifest*")):
        assert first.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    ranks = children_of(first.pid)
    assert len(ranks) == 2
    os.kill(ranks[0], signal.SIGKILL)
    first.communicate(timeout=300)
    before = hashes(tmp_path / "shared")
    assert 0 < len(before) < 6 and before.items() <= whole.items()

    out, err = subprocess.Popen([*launch, *MLX_TTS, *arguments], **options).communicate(timeout=600)
    counts = [json.loads(line) for line in out.decode().splitlines() if line.startswith("{")]
    assert len(counts) == 2, err.decode()
    assert [sum(count[name] for count in counts) for name in ("rows", "failed")] == [6, 0]
    assert 0 < sum(count["kept"] for count in counts) <= len(before)
    assert sum(count["made"] + count["kept"] for count in counts) == 6
    assert hashes(tmp_path / "shared") == whole
    assert sorted(path.name for path in (tmp_path / "shared").glob("manifest*")) == [
        "manifest-1-of-2.jsonl",
        "manifest-2-of-2.jsonl",
    ]


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["--shard", "3/2"], "expected I/N"),
        (["--shard", "0/2"], "expected I/N"),
        (["--speaker", "cedar"], "00001.wav: unknown speaker"),
        (["--max-frames", "0"], "max_frames is 0"),
        (["--batch-size", "0"], "--batch-size"),
    ],
)
def test_faults_come_before_the_weights_and_leave_nothing(run, unloadable, texts, tmp_path, arguments, reason):  # noqa: F811
    code, out, err = run("batch", texts, "-o", "speech", "--model", unloadable, "--speaker", "ryan", *arguments)
    assert (code, out) == (2, b"") and reason in err and err.count("\n") == 1
    assert not (tmp_path / "speech").exists()
