"""Any text as passages: nothing lost, nothing twice, cut where a reader would pause."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_rvqspec.passages import PASSAGE_S, Passage, split, spoken
from mlx_rvqspec.text import prepare, speakable

PIECES = [
    "a",
    "Word",
    " ",
    "\n",
    "\n\n",
    ".",
    "!",
    "?",
    "…",
    ",",
    ";",
    "—",
    " - ",
    "。",
    "！",
    "，",
    "、",
    "我",
    "こ",
    "한",
]
PIECES += [
    "é",
    "e\u0301",
    "👩\u200d👧",
    "5",
    "3.14",
    "Dr. ",
    "«",
    "»",
    "”",
    "*",
    "你好。",
    "слово",
    "x" * 60,
    "Да, да. ",
]


def texts(text: str, passage_s: float = PASSAGE_S) -> list[str]:
    return [passage.text for passage in split(prepare(text), passage_s=passage_s)]


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=200).map("".join), st.sampled_from([1.0, 3.0, 15.0]))
def test_every_character_is_in_exactly_one_passage(text: str, passage_s: float):
    if not speakable(text):
        return
    text = prepare(text)
    passages = split(text, passage_s=passage_s)
    at = 0
    for passage in passages:
        assert not text[at : passage.begin].strip()
        assert text[passage.begin : passage.end].split() == passage.text.split()
        assert passage.text and passage.text == passage.text.strip()
        assert passage.ordinary_s <= 2 * passage_s + 1  # its own length, and marks that belong to its last word
        assert "\n\n" not in passage.text
        at = passage.end
    assert not text[at:].strip()
    assert all(speakable(passage.text) for passage in spoken(passages))
    assert sum(p.pause_s for p in spoken(passages)) <= sum(p.pause_s for p in passages) + 1e-9


def test_a_short_text_is_one_passage_unchanged():
    assert texts("Hello.  Is it you? Yes, (it is)!") == ["Hello.  Is it you? Yes, (it is)!"]


@pytest.mark.parametrize(
    "sentences",
    [
        [
            "The cat sat on the mat. ",
            "Was it Dr. Smith, or Mr. J. Jones, at 3.14 a.m.? ",
            "“Go away!” he said. ",
        ],
        ["她说：“你好，很高兴见到你。”", "然后就走了，没有回头看一眼！", "为什么？"],
        ["今日はとてもいい天気ですね。", "「行きましょう！」", "と彼は言いました、そして笑った。"],
        ["오늘은 날씨가 정말 좋습니다. ", "어디로 갈까요? ", "바다로 갑시다! "],
        ["Am 3. Mai kam Hr. Müller z. B. nach Köln. ", "„Wirklich?“ ", "Ja, wirklich. "],
        ["« Bonjour, Mme Dupont ! » ", "Elle est partie… ", "Pourquoi donc ? "],
        ["Он пришёл в 5 часов, т. е. рано. ", "«Почему?» ", "Никто не знает, как обычно. "],
        ["O Sr. Silva chegou cedo. ", "Por quê? ", "Ninguém sabe ao certo. "],
        ["¿Dónde está la Sra. López? ", "¡No lo sé! ", "Quizás en casa, como siempre. "],
        ["Il Sig. Rossi è arrivato. ", "Davvero? ", "Sì, davvero. "],
    ],
)
def test_sentences_are_kept_whole_in_ten_languages(sentences: list[str]):
    paragraph = sentences * 8
    ends = {"".join(paragraph[: n + 1]).rstrip() for n in range(len(paragraph))}
    passages = split(prepare("".join(paragraph)), passage_s=8)
    assert len(passages) > 2
    for passage in passages:
        assert "".join(paragraph)[: passage.end] in ends


def test_a_sentence_too_long_is_cut_at_clauses_and_a_clause_at_words():
    clauses = texts("When the rain came, the small dog ran under the old bridge, and the cat, who knew, did not. ", 3)
    assert len(clauses) > 1 and all(clause.endswith((",", ".")) for clause in clauses)
    words = texts("word " * 400)
    assert len(words) > 5 and " ".join(words).split() == ["word"] * 400
    shortest, longest = min(map(len, words)), max(map(len, words))
    assert shortest > longest / 2  # no tail of one word
    assert "".join(texts("我" * 1500)) == "我" * 1500
    assert all(part[0] == "e" for part in texts("e\u0301" * 500))


def test_a_chapter_of_five_thousand_words_is_cut_between_sentences():
    sentences = [f"The {'word ' * (3 + number % 15)}and {number} more." for number in range(450)]
    text = "".join(sentence + ("\n\n" if number % 9 == 8 else " ") for number, sentence in enumerate(sentences))
    passages = split(prepare(text))
    assert len(text.split()) > 5000 and len(passages) > 100
    assert "\n".join(passage.text for passage in passages).split() == text.split()
    assert all(passage.text.endswith(".") and passage.ordinary_s <= PASSAGE_S + 1 for passage in passages)


def test_paragraphs_are_passages_of_their_own_with_a_pause():
    passages = split(prepare("Line one.\r\n\r\nLine two.\n\n\n\n"), paragraph_pause_s=0.5)
    assert [(passage.text, passage.pause_s) for passage in passages] == [("Line one.", 0.5), ("Line two.", 0.5)]


def test_what_cannot_be_spoken_is_a_longer_pause_or_stays_with_its_word():
    passages = spoken(split(prepare("One.\n\n* * *\n\n... Two?\n\n---"), paragraph_pause_s=0.5))
    assert [(passage.text, passage.pause_s) for passage in passages] == [("One.", 1.0), ("... Two?", 1.0)]


def test_wrapped_lines_are_joined_and_others_are_not():
    wrapped = "It was the best of times, it was the worst of times, it was\nthe age of wisdom.\nThe next day."
    assert texts(wrapped) == [wrapped.replace("was\nthe", "was the")]
    assert texts("one\ntwo\nthree") == ["one\ntwo\nthree"]


@pytest.mark.parametrize("part", [".", "a", "a. ", "-", ",", '"."', "\u0301", "a\n\n", "\n a ", "… a\n", "我，"])
def test_no_text_is_slow(part: str):
    begin = time.process_time()
    passages = split(prepare("a" + part * 30_000))
    assert time.process_time() - begin < 3
    assert max(map(seconds_and_tokens, passages)) < 500


def seconds_and_tokens(passage: Passage) -> float:
    return max(passage.ordinary_s, len(passage.text) / 2)
