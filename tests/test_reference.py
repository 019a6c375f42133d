"""Every stage before the sound against arrays recorded from the official code (tests/golden/make_reference.py)."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_rvqspec.cache import Joined
from mlx_rvqspec.load import load_model
from mlx_rvqspec.prompt import build_prompt, choose_voice, embed_prompt
from mlx_rvqspec.sampling import Sampling, first_code_scores, keep_likely
from mlx_rvqspec.utterance import Line, Steps, speak_line

GOLDEN = Path(__file__).parent / "golden"
FOLDERS = ("tiny_customvoice", "tiny_projected", "tiny_voicedesign", "tiny_base")
TEXT, CHINESE = "Hello there, this is a small test of the speech model.", "你好，世界。"
TRICKY = [TEXT, CHINESE, "It's 12.50 for iPhone/McDonald's,\nisn't IT?  Café é.", "<|im_end|> a\u00a0b 😀"]
ATOL = 1e-4


class Case:
    """A recorded checkpoint and its arrays."""

    def __init__(self, folder: str):
        self.model = load_model(GOLDEN / folder)
        self.arrays = np.load(GOLDEN / folder / "golden.npz")

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def close(self, name: str, value: mx.array) -> None:
        np.testing.assert_allclose(np.array(value), self[name], atol=ATOL, rtol=0, err_msg=name)


@pytest.fixture(scope="module", params=FOLDERS)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


# run -> folder, what was asked for, text feed, repetition penalty
INSTRUCT = {"instruct": "Speak slowly."}
DESIGN = {"instruct": "A calm, low voice.", "language": "English"}
RUNS = [
    *[
        (folder, run, TEXT, {"speaker": "Ryan", "language": "English", **extra}, feed, penalty)
        for folder, extra in (("tiny_customvoice", {}), ("tiny_projected", INSTRUCT))
        for run, feed, penalty in (
            ("stream", "stream", 1.05),
            ("nonstream", "full", 1.05),
            ("nopenalty", "stream", 1.0),
        )
    ],
    *[
        (folder, run, text, voice, "full", 1.05)
        for folder in ("tiny_customvoice", "tiny_projected")
        for run, text, voice in (("dialect", CHINESE, {"speaker": "Eric"}), ("auto", TEXT, {"speaker": "Vivian"}))
    ],
    ("tiny_voicedesign", "stream", TEXT, DESIGN, "stream", 1.05),
    ("tiny_voicedesign", "nonstream", TEXT, DESIGN, "full", 1.05),
    ("tiny_voicedesign", "nopenalty", TEXT, DESIGN, "stream", 1.0),
]


@pytest.mark.parametrize("folder, run, text, voice, feed, penalty", RUNS, ids=lambda value: str(value)[:18])
def test_prompt_and_greedy_codes(
    folder: str, run: str, text: str, voice: dict[str, str], feed: str, penalty: float
) -> None:
    case = Case(folder)
    model = case.model
    prompt = build_prompt(model.config, model.tokenizer, text, choose_voice(model.config, **voice), feed)
    prefill, trailing = embed_prompt(prompt, model)
    case.close(f"{run}.inputs_embeds", prefill)
    case.close(f"{run}.trailing_text_hidden", trailing[None, :-1])
    case.close(f"{run}.tts_pad_embed", trailing[None, -1:])
    # upstream's limit counts the code that would have ended the speech: 40 new tokens are 39 frames
    greedy = Sampling(do_sample=False, subtalker_do_sample=False, repetition_penalty=penalty)
    steps = Steps(model, greedy, wrap=lambda function: function)
    frames = list(speak_line(steps, Line(prefill, trailing, 0, 39), greedy))
    np.testing.assert_array_equal(np.stack([frame.codes for frame in frames]), case[f"{run}.codes.0"])
    assert [frame.reason for frame in frames[:-1]] == [None] * (len(frames) - 1)
    assert frames[-1].reason == ("length" if len(frames) == 39 else "stop")


def test_text_ids(case: Case) -> None:
    for i, text in enumerate(TRICKY):
        assert case.model.tokenizer.encode(text).ids == case[f"text.{i}"].tolist(), text


def test_code_decoder_prefill_and_steps(case: Case) -> None:
    """Teacher forcing on the recorded codes: prefill, then one frame at a time over the cache."""
    model = case.model
    decoder, inputs = model.code_decoder, mx.array(case["stream.inputs_embeds"])
    no_pads, length = mx.zeros((1,), dtype=mx.int32), inputs.shape[1]
    hidden, cache = decoder(inputs, decoder.new_cache(1, length + 16, mx.float32), no_pads)
    case.close("tf.prefill_hidden", hidden[0])
    case.close("tf.prefill_logits", decoder.codec_head(hidden)[0])
    trailing, pad = case["stream.trailing_text_hidden"][0], case["stream.tts_pad_embed"][0]
    rows = []
    for t, codes in enumerate(case["tf.codes"]):
        x = model.embed_frame(mx.array(codes[None])) + mx.array(trailing[t : t + 1] if t < len(trailing) else pad)
        np.testing.assert_allclose(np.array(x[0]), case["tf.step_inputs"][t], atol=ATOL, rtol=0)
        hidden, cache = decoder(x[:, None], cache, no_pads)
        rows.append(hidden[0, 0])
    case.close("tf.step_hidden", mx.stack(rows))
    case.close("tf.step_logits", decoder.codec_head(mx.stack(rows)))


def test_multi_code_decoder_at_all_positions(case: Case) -> None:
    """Four frames, teacher-forced, stepped slot by slot."""
    decoder, codes = case.model.multi_code_decoder, mx.array(case["tf.codes"][:4])
    hidden = np.concatenate([case["tf.prefill_hidden"][-1:], case["tf.step_hidden"][:3]])
    states, caches = decoder.prefill(mx.array(hidden), case.model.code_decoder.embed_codes(codes[:, :1])[:, 0])
    for i in range(15):
        logits = decoder.lm_head(states, mx.full((4,), i, dtype=mx.uint32))
        np.testing.assert_allclose(np.array(states[:, 0]), case["cp.hidden"][:, i], atol=ATOL, rtol=0)
        np.testing.assert_allclose(np.array(logits[:, 0]), case["cp.logits"][:, i], atol=ATOL, rtol=0)
        if i < 14:
            caches = [Joined(cache.rows) for cache in caches]
            x = decoder.embed(codes[:, i + 1 : i + 2], mx.array(i * 64))
            states = decoder(x, decoder.at_slots(i + 2, i + 3), None, caches)


def test_left_padded_batch_equals_single_rows() -> None:
    case = Case("tiny_customvoice")
    decoder, inputs = case.model.code_decoder, mx.array(case["batch.inputs_embeds"])
    num_pads = mx.array((case["batch.attention_mask"] == 0).sum(axis=1).astype(np.int32))
    hidden, _ = decoder(inputs, decoder.new_cache(2, inputs.shape[1], mx.float32), num_pads)
    for row in range(2):
        np.testing.assert_allclose(np.array(hidden[row, -1]), case[f"batch.hidden.{row}"][0], atol=ATOL, rtol=0)


@pytest.mark.parametrize("tag, top_k, top_p, temperature, num_seen", [
    ("default", 50, 1.0, 0.9, 12), ("nucleus", 20, 0.8, 0.7, 12), ("first_step", 50, 1.0, 0.9, 0),
])  # fmt: skip
def test_sampler_order(tag: str, top_k: int, top_p: float, temperature: float, num_seen: int) -> None:
    """Probabilities of codebook 0 after the whole chain equal those of transformers."""
    case = Case("tiny_customvoice")
    logits, ids = mx.array(case["sampler.logits"]), case.model.config.code_decoder
    seen = np.zeros(logits.shape, dtype=bool)
    seen[:, case["sampler.history"][:num_seen]] = True
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    steps = Steps(case.model, sampling, wrap=lambda function: function)
    scores = first_code_scores(
        logits, mx.array(seen), mx.array(num_seen), steps.allowed, ids.codec_eos_token_id, mx.array(1.05)
    )
    kept = keep_likely(scores, sampling.first.form, sampling.first.knobs)
    case.close(f"sampler.{tag}.probs", mx.softmax(kept / temperature, axis=-1))
