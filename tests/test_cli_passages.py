"""mlx-tts on long texts and on speech that does not end by itself."""

import json

import numpy as np
import pytest
from conftest import TINY
from test_cli import HELLO, SEED, VOICE, run, samples, unloadable  # noqa: F401  fixtures

from mlx_rvqspec.generate import load
from mlx_rvqspec.guard import attempt_seed

BOOK = "Hello.\r\n\r\n\r\nHello.\r\n"


def test_a_file_is_read_passage_by_passage(run, tmp_path):  # noqa: F811
    (tmp_path / "book.txt").write_bytes(b"\xef\xbb\xbf" + BOOK.encode())
    options = [*VOICE, "--seed", SEED, "--paragraph-pause-ms", 100]
    code, out, err = run("speak", "-f", "book.txt", *options, "-o", "a.wav", "--json")
    facts = json.loads(out)
    assert code == 0 and facts["num_passages"] == 2 and facts["share"] == 1
    assert facts["attempts"] == [
        {"passage": number, "seed": SEED, "frames": 7, "finish_reason": "stop"} for number in range(2)
    ]
    sound = samples("a.wav")
    assert len(sound) == 2 * 7 * 1920 + 2400 and not sound[7 * 1920 : 7 * 1920 + 2400].any()
    assert run("speak", "-", *options, "-o", "b.wav", stdin=BOOK.encode())[0] == 0
    np.testing.assert_array_equal(samples("b.wav"), sound)


def test_dry_run_prints_the_passages_and_needs_no_weights(run, unloadable, tmp_path):  # noqa: F811
    text = "**One.** Two, three and four 🚀!\n\n# Title\n\n" + "word " * 60
    arguments = ["speak", text, "--clean", "--passage-s", 10, "--dry-run", "--model", unloadable, "--speaker", "ryan"]
    code, out, err = run(*arguments)
    assert code == 0 and err.startswith("passages: 5, about ")
    lines = out.decode().splitlines()
    assert lines[:4] == ["One. Two, three and four!", "", "Title", ""]
    assert " ".join(lines[4:]).split() == ["word"] * 60
    facts = json.loads(run(*arguments, "--json")[1])
    assert [row["text"] for row in facts["passages"]] == [line for line in lines if line]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


@pytest.mark.parametrize(
    "arguments, code, reason",
    [
        (["Hi", "-f", "book.txt"], 2, "either a TEXT"),
        (["-f", "missing.txt"], 3, "missing.txt"),
        (["-f", "latin.txt"], 2, "not valid UTF-8"),
        (["Hi", "--passage-s", "0"], 2, "--passage-s"),
        (["Hi", "--on-runaway", "again"], 2, "--on-runaway"),
    ],
)
def test_faults_of_the_text_come_before_the_weights(run, unloadable, tmp_path, arguments, code, reason):  # noqa: F811
    (tmp_path / "book.txt").write_text("Hello.")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    found, out, err = run("speak", *arguments, "--model", unloadable, "--speaker", "ryan", "-o", "a.wav")
    assert (found, out) == (code, b"") and reason in err and err.count("\n") == 1
    assert not (tmp_path / "a.wav").exists()


def test_runaways_by_policy(run, tmp_path):  # noqa: F811
    limit = [*HELLO, "--max-frames", 3]
    code, _, err = run(*limit, "-o", "a.wav", "--on-runaway", "error")
    assert code == 4 and "'Hello.' did not end by itself but by length" in err and not (tmp_path / "a.wav").exists()
    code, out, err = run(*limit, "-o", "a.wav", "--on-runaway", "retry")
    told = err.splitlines()
    assert code == 4 and len(told) == 1 + 3 + 1
    for attempt in range(3):
        assert f"passage 1 with seed {attempt_seed(SEED, attempt)} ended by length after 3 frames" == told[1 + attempt]
    last = load(TINY).speak("Hello.", speaker="ryan", seed=attempt_seed(SEED, 2), chunk_frames=3)
    expected = np.rint(last.audio[: 3 * 1920].clip(-1, 1) * 32767)
    # in chunks of another length, which a BLAS may add up in another order
    np.testing.assert_allclose(samples("a.wav"), expected, atol=4)
