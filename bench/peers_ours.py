"""Our side of bench/peers.py: does what it is told, a JSON line at a time, on one thread and without an Engine."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import mlx_rvqspec  # noqa: F401  isort: skip  before MLX: it brings a good BLAS on Linux

import mlx.core as mx
import numpy as np

from mlx_rvqspec.bench.frame import Advance, as_it_is
from mlx_rvqspec.fit.offsets import initial_weights
from mlx_rvqspec.fit.run import default_form
from mlx_rvqspec.heads import Heads
from mlx_rvqspec.load import embedded_folder, load_model
from mlx_rvqspec.model import Qwen3TTS
from mlx_rvqspec.prompt import build_prompt, choose_voice
from mlx_rvqspec.spec_decode import drafter as drafters
from mlx_rvqspec.utterance import Frame, Line, Steps, speak_line

ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


def random_drafter(model: Qwen3TTS) -> drafters.Drafter:
    """For random weights, with the trees of the built-in voice's drafter: it costs as much and is never right."""
    voice = load_model()
    path = embedded_folder() / drafters.FILE
    trained = drafters.load(path, voice.multi_code_decoder, voice.fingerprints)
    form = replace(default_form(model.multi_code_decoder), num_depths=trained.form.num_depths)
    weights = initial_weights(form, model.multi_code_decoder, mx.random.key(0))
    return drafters.Drafter(form, weights, trained.trees, "random", model.fingerprint, trained.facts)


class Side:
    def __init__(self, folder: str, drafter: str) -> None:
        self.model = load_model(folder, dtype="float32")
        own = self.model.multi_code_decoder, self.model.fingerprints
        if drafter == "random":
            self.drafter: drafters.Drafter | None = random_drafter(self.model)
        else:
            self.drafter = drafters.find(self.model.folder, *own, drafter or None)
        self.heads = Heads(self.model)
        self.steps: dict[Any, Steps] = {}

    def steps_for(self, task: dict[str, Any]) -> Steps:
        key = task["num_nodes"], task["compiled"], task["temperature"], task["penalty"]
        if key not in self.steps:
            spec = {"drafter": self.drafter, "num_nodes": task["num_nodes"]} if task["num_nodes"] > 1 else {}
            wrap = mx.compile if task["compiled"] else as_it_is
            self.steps[key] = Steps(self.model, self._sampling(task), wrap, **spec)
        return self.steps[key]

    def _sampling(self, task: dict[str, Any]) -> Any:
        knobs = {"temperature": task["temperature"], "subtalker_temperature": task["temperature"]}
        return replace(self.model.sampling, **knobs, repetition_penalty=task["penalty"])

    def speak(self, task: dict[str, Any]) -> Iterator[Frame]:
        model = self.model
        voice = choose_voice(model.config, task["speaker"])
        prompt = build_prompt(model.config, model.tokenizer, task["text"], voice, task["text_feed"])
        prefill, trailing, head = self.heads.embed(prompt)
        line = Line(prefill, trailing, task["seed"], task["frames"], head)
        return speak_line(self.steps_for(task), line, self._sampling(task))

    def codes(self, task: dict[str, Any]) -> dict[str, Any]:
        """Text to codes, the SpeechDecoder left out."""
        steps, tally = self.steps_for(task), self.steps_for(task).new_tally()
        begin = time.perf_counter()
        frames: list[Frame] = list(self.speak(task))
        seconds = time.perf_counter() - begin
        if steps.rounds:
            for frame in frames:
                tally.add(frame.origin)
        rounds = tally.counts()["rounds"] / len(frames) if steps.rounds else 15.0
        return {"seconds": seconds, "codes": [frame.codes.tolist() for frame in frames], "rounds": rounds}

    def code_0(self, task: dict[str, Any]) -> dict[str, Any]:
        """The CodeDecoder's part of a frame alone."""
        wrap, codes = mx.compile if task["compiled"] else as_it_is, mx.zeros((1, 16), dtype=mx.int32)
        advance = Advance(self.model, codes, wrap)
        mx.eval(advance())  # warms up
        begin = time.perf_counter()
        mx.eval(advance())
        return {"seconds": time.perf_counter() - begin}

    def first_sound(self, task: dict[str, Any]) -> dict[str, Any]:
        step = self._step(task)
        begin = time.perf_counter()
        frames = list(islice(self.speak(task), task["chunk_frames"]))
        codes = mx.array(np.stack([frame.codes for frame in frames])[None])
        audio, _ = step(codes, self.model.speech_decoder.initial_state(1))
        mx.eval(audio)
        return {"seconds": time.perf_counter() - begin, "samples": audio.size}

    def sound(self, task: dict[str, Any]) -> dict[str, Any]:
        """One streaming step of the SpeechDecoder."""
        step, codes = self._step(task), mx.array(task["codes"])[None]
        audio, state = step(codes, self.model.speech_decoder.initial_state(1))
        mx.eval(audio, state)
        begin = time.perf_counter()
        audio, _ = step(codes, state)
        mx.eval(audio)
        return {"seconds": time.perf_counter() - begin, "samples": audio.size}

    def _step(self, task: dict[str, Any]) -> Callable:
        step = self.model.speech_decoder.step
        return mx.compile(step) if task["compiled"] else step


def main() -> None:
    begin = time.perf_counter()
    side = Side(*sys.argv[1:3])
    facts = {"load_s": time.perf_counter() - begin, "mlx": mx.__version__, "fingerprint": side.model.fingerprint}  # pyright: ignore[reportAttributeAccessIssue]
    print(json.dumps(facts), file=ANSWERS)
    for text in sys.stdin:
        task = json.loads(text)
        answer = {"codes": side.codes, "code_0": side.code_0, "first_sound": side.first_sound, "sound": side.sound}[
            task["task"]
        ](task)
        print(json.dumps(answer | {"peak_bytes": mx.get_peak_memory()}), file=ANSWERS)


if __name__ == "__main__":
    main()
