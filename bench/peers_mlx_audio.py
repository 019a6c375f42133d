"""mlx-audio's side of bench/peers.py: runs in its own environment and does what it is told, a JSON line at a time."""

import json
import os
import sys
import time
from typing import Any

import mlx.core as mx
from mlx_audio.tts.utils import load_model

ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # the library prints


class NoSound:
    """Stands for the speech tokenizer where only codes are wanted: keeps them."""

    def __init__(self) -> None:
        self.codes: Any = None

    def decode(self, codes: mx.array) -> tuple[mx.array, mx.array]:
        self.codes = codes
        return mx.zeros((1, 1)), mx.array([0])


def a_token_a_frame(prepare: Any) -> Any:
    """The library's ``_prepare_generation_inputs``, whose text comes a token beside each frame, as upstream's may.

    It always puts the whole text first. The built-in voice learnt the other order and ends at once in this one: the
    same rows, in the order that a checkpoint with non_streaming_mode false asks for.
    """

    def arranged(text: str, **options: Any) -> tuple[mx.array, mx.array, mx.array]:
        model = prepare.__self__
        rows, _, pad = prepare(text=text, **options)
        ids = model.tokenizer.encode(f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n")
        ids = [*ids[3:-5], model.config.tts_eos_token_id]
        words = model.talker.text_projection(model.talker.get_text_embeddings()(mx.array([ids])))
        begin = model.talker.get_input_embeddings()(mx.array([[model.config.talker_config.codec_bos_id]]))
        return mx.concatenate([rows[:, : -len(ids) - 1], begin + words[:, :1]], axis=1), words[:, 1:], pad

    return arranged


def speak(model: Any, task: dict[str, Any], **more: Any) -> Any:
    prepare = type(model)._prepare_generation_inputs.__get__(model)
    model._prepare_generation_inputs = prepare if task["text_feed"] == "full" else a_token_a_frame(prepare)
    knobs = {"temperature": task["temperature"], "top_k": 50, "top_p": 1.0, "repetition_penalty": task["penalty"]}
    mx.random.seed(task["seed"])
    return model.generate(
        task["text"], voice=task["speaker"], lang_code="auto", max_tokens=task["frames"], **knobs, **more
    )


def codes(model: Any, task: dict[str, Any]) -> dict[str, Any]:
    """Text to codes, the SpeechDecoder left out."""
    sound, model.speech_tokenizer = model.speech_tokenizer, NoSound()
    try:
        begin = time.perf_counter()
        for _ in speak(model, task):
            pass
        mx.eval(model.speech_tokenizer.codes)
        seconds = time.perf_counter() - begin
        rows = model.speech_tokenizer.codes[0].tolist()
    finally:
        model.speech_tokenizer = sound
    return {"seconds": seconds, "codes": rows}


def first_sound(model: Any, task: dict[str, Any]) -> dict[str, Any]:
    begin = time.perf_counter()
    chunks = speak(model, task, stream=True, streaming_interval=task["chunk_frames"] / 12.5)
    audio = next(iter(chunks)).audio
    mx.eval(audio)
    seconds = time.perf_counter() - begin
    chunks.close()
    return {"seconds": seconds, "samples": audio.shape[0]}


def sound(model: Any, task: dict[str, Any]) -> dict[str, Any]:
    """One streaming step of the SpeechDecoder."""
    decoder = model.speech_tokenizer.decoder
    rows = mx.array(task["codes"])[None].transpose(0, 2, 1)
    decoder.reset_streaming_state()
    mx.eval(decoder.streaming_step(rows))
    begin = time.perf_counter()
    audio = decoder.streaming_step(rows)
    mx.eval(audio)
    return {"seconds": time.perf_counter() - begin, "samples": audio.size}


def main() -> None:
    begin = time.perf_counter()
    model = load_model(sys.argv[1])
    facts = {"load_s": time.perf_counter() - begin, "mlx": mx.__version__}
    print(json.dumps(facts), file=ANSWERS)
    for line in sys.stdin:
        task = json.loads(line)
        answer = {"codes": codes, "first_sound": first_sound, "sound": sound}[task["task"]](model, task)
        print(json.dumps(answer | {"peak_bytes": mx.get_peak_memory()}), file=ANSWERS)


if __name__ == "__main__":
    main()
