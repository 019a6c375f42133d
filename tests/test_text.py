"""What can be spoken, and what the cleaner removes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_rvqspec.text import clean, longest_speech_s, prepare


@pytest.mark.parametrize("text", ["", "   ", "\n\t", "\u200b", "\ufeff", "\u200d\u00a0\r\n", "\0"])
def test_blank_text_is_refused(text):
    with pytest.raises(ValueError, match="^text is empty$"):
        prepare(text)


@pytest.mark.parametrize("text", ["...", "!?", "—", "🙂🙂", "* * *", "```", "#", "。"])
def test_text_without_letters_or_digits_is_refused(text):
    with pytest.raises(ValueError, match="nothing to say"):
        prepare(text)


@pytest.mark.parametrize("text", ["a", "5", "É", "你好。", "2次", "नमस्ते", "١", "½", "3 🙂", "C#"])
def test_a_letter_or_digit_of_any_script_is_speech(text):
    assert prepare(text) == text


def test_bytes_that_are_not_utf8_are_refused():
    with pytest.raises(ValueError, match="not valid UTF-8"):
        prepare(b"caf\xe9".decode("utf-8", "surrogateescape"))


def test_lines_end_in_any_way_and_one_blank_line_is_left_between_paragraphs():
    assert (
        prepare("\ufeff\n\nLine one.\r\n\r\n\n \n  Line two.\u2028Line three.\r")
        == "Line one.\n\nLine two.\nLine three."
    )


def test_the_rest_of_the_text_is_passed_unchanged():
    text = "**Note** 🚀 see `foo()` at https://example.org/a?b=1 | done"
    assert prepare(text) == text


@pytest.mark.parametrize(
    "written, spoken",
    [
        ("**Note** 🚀 see `foo()` at https://example.org/a?b=1 | done", "Note see foo() at, done"),
        ("# Title #\n\n---\n* one\n- [x] two\n> three", "Title #\n\none\ntwo\nthree"),
        ("```py\nx = 1\n```", "x = 1"),
        ("|a|b|\n|---|:-:|\n| 1 | 2 |", "a, b\n1, 2"),
        ('Read [the book](http://b.org "B") or ![a cat](cat.png).', "Read the book or a cat."),
        ("See www.example.com/a_b, or <https://c.org>.", "See, or."),
        ("~~no~~ _yes_ __init__ ***so***", "no yes init so"),
        ("2*3 = 2 * 3, ~5 km, snake_case, C#, 5 €", "2*3 = 2 * 3, ~5 km, snake_case, C#, 5 €"),
        ("👩‍👩‍👧 family 👍🏽 1 ✅", "family 1"),
        ("Call 555-0100, 1,200 kg, 3.14, 2026-11-29", "Call 555-0100, 1,200 kg, 3.14, 2026-11-29"),
        ("🙂 ***", ""),
    ],
)
def test_clean_leaves_what_is_said(written, spoken):
    assert clean(written) == spoken


@given(st.text(alphabet=st.sampled_from('ab1 *_~`#>|-[](){}!\n"<.🙂w:/htps')))
def test_clean_takes_anything_and_invents_nothing(text):
    assert set(clean(text)) <= set(text) | set(", \n")


@pytest.mark.parametrize("part", ["*", "~", "[", "[(", "| ", "> ", "a* ", "http://", "[a](", "x \t"])
def test_clean_is_not_slow_on_any_input(part):
    clean(part * 30_000)  # a quadratic pattern takes minutes here


@pytest.mark.parametrize(
    "text, ordinary_s",
    [("OK", 0.6), ("5", 0.5), ("2次", 0.7), ("The quick brown fox jumps over the lazy dog.", 3.0), ("1234567", 4.0)],
)
def test_the_longest_reading_leaves_room_and_ends(text, ordinary_s):
    assert 1.5 * ordinary_s < longest_speech_s(text) < 2 + 5 * ordinary_s
