"""From text, voice, language and instruction to the ids the CodeDecoder is prefilled with.

Layout as upstream (modeling_qwen3_tts.py, ``generate`` and ``generate_icl_prompt``): every position is a text
embedding, most of them plus the embedding of a code, of a control id or of a cloned voice's frame. Names are checked
against config.json alone, before any weights are loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from tokenizers import Tokenizer

from .cloned_voice import ClonedVoice
from .config import ModelConfig
from .english import in_words
from .model import Qwen3TTS
from .names import nearest
from .tokenizer import END, NUM_END_TOKENS, NUM_ROLE_TOKENS, ROLE

NUM_REFERENCE_END_TOKENS = 2  # <|im_end|> \n
TEXT_FEEDS = ("full", "stream")
VECTOR = -1  # in place of a code id: the next vector of the cloned voice
LANGUAGE_CODES = {  # ISO 639-1, 639-2 and 639-3
    **dict.fromkeys(("en", "eng"), "english"),
    **dict.fromkeys(("zh", "zho", "chi", "cmn"), "chinese"),
    **dict.fromkeys(("ja", "jpn"), "japanese"),
    **dict.fromkeys(("ko", "kor"), "korean"),
    **dict.fromkeys(("de", "deu", "ger"), "german"),
    **dict.fromkeys(("fr", "fra", "fre"), "french"),
    **dict.fromkeys(("ru", "rus"), "russian"),
    **dict.fromkeys(("pt", "por"), "portuguese"),
    **dict.fromkeys(("es", "spa"), "spanish"),
    **dict.fromkeys(("it", "ita"), "italian"),
}


@dataclass(frozen=True)
class Voice:
    """Who speaks and how: names checked against the model, turned into ids; clone: the voice of a Base model."""

    speaker: str | None
    language: str
    speaker_id: int | None
    language_id: int | None
    instruct: str | None
    clone: ClonedVoice | None = None

    def facts(self) -> dict[str, str | int | None]:
        """What to tell people about it."""
        names = ("speaker", "language", "speaker_id", "language_id", "instruct")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Prompt:
    """Ids of the prefill and of the text still to come.

    text_ids: one per position; code_ids: those of the last ``len(code_ids)`` positions, VECTOR for speaker_vector [D]
    and then for each of the frames [T, 16]; trailing_ids: one is added per frame, then the pad id; num_head: how many
    positions come first that do not depend on the text.
    """

    text_ids: list[int]
    code_ids: list[int]
    trailing_ids: list[int]
    pad_id: int
    speaker_vector: np.ndarray | None = None
    frames: np.ndarray | None = None
    num_head: int = 1


def choose_voice(
    config: ModelConfig,
    speaker: str | None = None,
    language: str = "auto",
    instruct: str | None = None,
    clone: ClonedVoice | None = None,
) -> Voice:
    """The voice for these names, matched without regard to case, spaces and dashes.

    A dialect speaker turns language "chinese" and "auto" into the dialect, as upstream. An empty instruction is none.
    Raises ValueError for an unknown name, for what this kind of model does not take, or does not speak without.
    """
    name = _choose_speaker(config, speaker, clone)
    language = _choose_language(config, language)
    if instruct and not config.follows_instruct:
        kind = "Base" if config.tts_model_type == "base" else f"{config.tts_model_size} {config.tts_model_type}"
        raise ValueError(
            f"instruct given, but this {kind} model ignores instructions; use a 1.7B CustomVoice or VoiceDesign model"
        )
    ids = config.code_decoder
    dialect = ids.spk_is_dialect.get(name, False) if name else False
    spoken = dialect if isinstance(dialect, str) and language in ("chinese", "auto") else language
    return Voice(
        speaker=name,
        language=spoken,
        speaker_id=ids.spk_id[name] if name else None,
        language_id=None if spoken == "auto" else ids.codec_language_id[spoken],
        instruct=instruct or None,
        clone=clone,
    )


def _choose_speaker(config: ModelConfig, speaker: str | None, clone: ClonedVoice | None) -> str | None:
    kind, names = config.tts_model_type, config.speakers
    if clone is not None and kind != "base":
        own = "designed voices" if kind == "voice_design" else "its own speakers"
        raise ValueError(f"a cloned voice given, but this {kind} model has {own}; cloned voices need a Base model")
    if kind == "base":
        if speaker is not None:
            raise ValueError(f"speaker {speaker!r} given, but a Base model has none: it takes a cloned voice, voice=")
        if clone is None:
            raise ValueError(
                "this is a Base model, which speaks with a cloned voice, and none is given; "
                "mlx-tts voices make makes one from a recording"
            )
        return None
    if kind == "voice_design":
        if speaker is not None:
            raise ValueError(f"speaker {speaker!r} given, but a VoiceDesign model takes a description: instruct=")
        return None
    if speaker is None:
        if len(names) == 1 or config.default_speaker:
            return config.default_speaker or names[0]
        raise ValueError(f"no speaker given; this model has {', '.join(names)}")
    wanted = speaker.strip().lower().replace(" ", "_").replace("-", "_")
    if wanted in names:
        return wanted
    raise ValueError(f"unknown speaker {speaker!r}; this model has {', '.join(names)}{nearest(wanted, names)}")


def _choose_language(config: ModelConfig, language: str) -> str:
    wanted = language.strip().lower()
    wanted = LANGUAGE_CODES.get(wanted.replace("_", "-").split("-")[0], wanted)
    if wanted == "auto" or wanted in config.languages:
        return wanted
    speakers = [name for name, dialect in config.code_decoder.spk_is_dialect.items() if dialect == wanted]
    if speakers:
        raise ValueError(f"{wanted} is no language to choose: it is what {speakers[0]} speaks in chinese or auto")
    names = ("auto", *config.languages)
    hint = nearest(wanted, names)
    raise ValueError(f"unknown language {language!r}; expected {', '.join(names)}, or a code such as en-US{hint}")


def as_read(config: ModelConfig, text: str) -> str:
    """What of the text the model is given: for one that knows words only, those that its numerals are read as."""
    return in_words(text) if config.text_reader else text


def build_prompt(
    config: ModelConfig,
    tokenizer: Tokenizer,
    text: str,
    voice: Voice,
    text_feed: str,
    spoken: np.ndarray | None = None,
) -> Prompt:
    """The ids for ``text``: "full" puts all of it before the first frame, "stream" one token beside each frame.

    spoken: frames [T, 16] in which its beginning has been said already. The prompt is then what the model has seen when
    it has come so far by itself: the layout is upstream's for a recording with its words, whatever the kind of model.
    """
    ids, clone = config.code_decoder, voice.clone
    tokens = tokenizer.encode(f"{ROLE}{as_read(config, text)}{END}").ids
    role, words = tokens[:NUM_ROLE_TOKENS], tokens[NUM_ROLE_TOKENS:-NUM_END_TOKENS]
    front = tokenizer.encode(f"<|im_start|>user\n{voice.instruct}<|im_end|>\n").ids if voice.instruct else []
    if voice.language_id is None:
        prefix = [ids.codec_nothink_id, ids.codec_think_bos_id, ids.codec_think_eos_id]
    else:
        prefix = [ids.codec_think_id, ids.codec_think_bos_id, voice.language_id, ids.codec_think_eos_id]
    if voice.speaker_id is not None or clone is not None:
        prefix.append(VECTOR if voice.speaker_id is None else voice.speaker_id)
    pad, num_beside = config.tts_pad_token_id, 0
    heard = [codes for codes in (clone and clone.codes, spoken) if codes is not None]
    frames, known = np.concatenate(heard) if heard else None, []
    if clone is not None and clone.codes is not None:
        known = tokenizer.encode(f"<|im_start|>assistant\n{clone.text}<|im_end|>\n").ids
        known = known[NUM_ROLE_TOKENS:-NUM_REFERENCE_END_TOKENS]
        num_beside = len(known) if text_feed == "full" else min(len(known), len(clone.codes))
    if frames is None:
        body = _from_the_start(config, words, text_feed)
    else:
        body = _after_frames(config, [*known, *words], len(frames), text_feed)
    text_ids, code_ids, trailing = body
    return Prompt(
        [*front, *role, *[pad] * len(prefix), config.tts_bos_token_id, *text_ids],
        [*prefix, ids.codec_pad_id, *code_ids],
        trailing,
        pad,
        None if clone is None else clone.speaker_vector,
        frames,
        len(front) + len(role) + len(prefix) + 1 + num_beside,
    )


def _from_the_start(config: ModelConfig, words: list[int], text_feed: str) -> tuple[list[int], list[int], list[int]]:
    """Text ids, code ids and trailing text ids behind the prefix, when nothing has been spoken yet."""
    pad, eos, ids = config.tts_pad_token_id, config.tts_eos_token_id, config.code_decoder
    if text_feed == "full":
        return [*words, eos, pad], [*[ids.codec_pad_id] * (len(words) + 1), ids.codec_bos_id], [pad]
    return words[:1], [ids.codec_bos_id], [*words[1:], eos]


def _after_frames(
    config: ModelConfig, words: list[int], num_frames: int, text_feed: str
) -> tuple[list[int], list[int], list[int]]:
    """The same when the first ``num_frames`` frames have been spoken already; words: theirs and those to come."""
    pad, ids = config.tts_pad_token_id, config.code_decoder
    words, frames = [*words, config.tts_eos_token_id], [ids.codec_bos_id, *[VECTOR] * num_frames]
    if text_feed == "full":
        return [*words, *[pad] * len(frames)], [*[ids.codec_pad_id] * len(words), *frames], [pad]
    beside = words[: len(frames)]
    return [*beside, *[pad] * (len(frames) - len(beside))], frames, words[len(frames) :] or [pad]


def embed_prompt(prompt: Prompt, model: Qwen3TTS) -> tuple[mx.array, mx.array]:
    """The prefill [1, T, D], and the rows added to later frames [n + 1, D] whose last row is the padding."""
    return _embed(prompt, model, 0, len(prompt.text_ids), [*prompt.trailing_ids, prompt.pad_id])


def embed_head(prompt: Prompt, model: Qwen3TTS) -> mx.array:
    """The head of the prefill [1, num_head, D]."""
    return _embed(prompt, model, 0, prompt.num_head)[0]


def embed_rest(prompt: Prompt, model: Qwen3TTS) -> tuple[mx.array, mx.array]:
    """As ``embed_prompt``, without the head."""
    return _embed(prompt, model, prompt.num_head, len(prompt.text_ids), [*prompt.trailing_ids, prompt.pad_id])


def _embed(
    prompt: Prompt, model: Qwen3TTS, begin: int, end: int, more: Sequence[int] = ()
) -> tuple[mx.array, mx.array]:
    """Positions begin..end-1 of the prefill [1, n, D], and more text ids [m, D]."""
    decoder, num_plain = model.code_decoder, len(prompt.text_ids) - len(prompt.code_ids)
    text = decoder.embed_text(mx.array([[*prompt.text_ids[begin:end], *more]]))
    beside = prompt.code_ids[max(0, begin - num_plain) : max(0, end - num_plain)]
    rows = text[:, : end - begin]
    if beside:
        codes = decoder.embed_codes(mx.array([[max(code, 0) for code in beside]]))
        if places := [place for place, code in enumerate(beside) if code == VECTOR]:
            first = prompt.code_ids[: max(0, begin - num_plain)].count(VECTOR)
            vectors = _vectors(prompt, model)[first : first + len(places)]
            codes[:, mx.array(places)] = vectors.astype(codes.dtype)
        rows = rows + mx.pad(codes, [(0, 0), (end - begin - len(beside), 0), (0, 0)])
    return rows, text[0, end - begin :]


def _vectors(prompt: Prompt, model: Qwen3TTS) -> mx.array:
    """What the VECTOR places of a prompt stand for [n, D]: the speaker, then the frames."""
    speaker, frames = prompt.speaker_vector, prompt.frames
    parts = [] if speaker is None else [mx.array(speaker)[None]]
    return mx.concatenate(parts if frames is None else [*parts, model.embed_frame(mx.array(frames))])
