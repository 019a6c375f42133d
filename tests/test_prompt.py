"""Which names and combinations a model takes: languages by name and code, dialects through their speakers."""

from dataclasses import replace
from unicodedata import normalize

import pytest
from conftest import TINY

from mlx_rvqspec.config import ModelConfig, read_config
from mlx_rvqspec.prompt import build_prompt, choose_voice
from mlx_rvqspec.tokenizer import load_tokenizer

CODES = {
    "english": "en EN en-US en_GB eng",
    "chinese": "zh zh-CN zh_TW zh-Hans-CN zho chi cmn",
    "japanese": "ja ja-JP jpn",
    "korean": "ko kor",
    "german": "de de-AT deu ger",
    "french": "fr fr-CA fra fre",
    "russian": "ru rus",
    "portuguese": "pt pt-BR por",
    "spanish": "es es-419 spa",
    "italian": "it ita",
}


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return read_config(TINY)


@pytest.mark.parametrize("language", CODES)
def test_languages_have_a_name_and_codes(config: ModelConfig, language: str) -> None:
    for name in (language, language.title(), f" {language.upper()} ", *CODES[language].split()):
        voice = choose_voice(config, "ryan", name)
        assert (voice.language, voice.language_id) == (language, config.code_decoder.codec_language_id[language])


def test_every_language_of_the_published_models_has_codes(config: ModelConfig) -> None:
    assert set(CODES) == set(config.languages) and not any("dialect" in name for name in config.languages)


@pytest.mark.parametrize("language", ["xx", "klingon", "", "english-us", "none"])
def test_an_unknown_language_lists_what_there_is(config: ModelConfig, language: str) -> None:
    with pytest.raises(ValueError, match="expected auto, .*english.*, or a code such as en-US"):
        choose_voice(config, "ryan", language)


@pytest.mark.parametrize(
    "speaker, language, spoken",
    [
        ("eric", "auto", "sichuan_dialect"),
        ("Eric", "zh-CN", "sichuan_dialect"),
        ("dylan", "chinese", "beijing_dialect"),
        ("dylan", "en", "english"),
        ("vivian", "auto", "auto"),
        ("vivian", "zh", "chinese"),
    ],
)
def test_dialects_come_with_their_speakers(config: ModelConfig, speaker: str, language: str, spoken: str) -> None:
    voice = choose_voice(config, speaker, language)
    assert voice.language == spoken
    assert voice.language_id == config.code_decoder.codec_language_id.get(spoken)


def test_a_dialect_cannot_be_chosen_and_says_who_speaks_it(config: ModelConfig) -> None:
    with pytest.raises(ValueError, match="beijing_dialect is no language to choose: it is what dylan speaks"):
        choose_voice(config, "ryan", "Beijing_Dialect")


def test_where_nobody_is_named_the_models_default_speaks_or_the_caller_must_choose(config: ModelConfig) -> None:
    with pytest.raises(ValueError, match="no speaker given; this model has .*ryan"):
        choose_voice(config, None)
    assert choose_voice(replace(config, default_speaker="ryan"), None).speaker == "ryan"


# The rest of what kinds of models take or refuse is in docs/official_calls.md, which test_official_calls.py runs.


def test_an_empty_instruction_is_none(config: ModelConfig) -> None:
    assert choose_voice(config, "ryan", instruct="").instruct is None
    with pytest.raises(ValueError, match="ignores instructions"):
        choose_voice(config, "ryan", instruct="sad")


NUMBERS = ["1 2 3 4 5", "Call 555-0100, 1,200 kg, 3.14, 2026-11-29", "10" * 200, "٣ ४ ５"]


@pytest.mark.parametrize("text", NUMBERS)
@pytest.mark.parametrize("feed", ["full", "stream"])
def test_every_digit_reaches_the_model_in_the_language_asked_for(config: ModelConfig, text: str, feed: str) -> None:
    """Where no recogniser listens: nothing of the text is lost on the way in, and the language is in the prefix."""
    tokenizer = load_tokenizer(TINY, config)
    said = []
    for language in ("english", "chinese"):
        prompt = build_prompt(config, tokenizer, text, choose_voice(config, "ryan", language), feed)
        assert normalize("NFC", text) in tokenizer.decode([*prompt.text_ids, *prompt.trailing_ids])
        assert config.code_decoder.codec_language_id[language] in prompt.code_ids
        said.append(prompt.code_ids)
    assert said[0] != said[1]
