"""Speak a text while it is still being written, as a language model's answer is: python text_as_it_comes.py"""

import time

import mlx_rvqspec as tts


def answer():
    """Stands for a program that writes word by word."""
    for word in "This was spoken before the last word was known.".split():
        yield word + " "
        print(word, end=" ", flush=True)
        time.sleep(0.05)


engine = tts.load()
for chunk in engine.stream(answer(), speaker=engine.speakers[0], seed=6):
    print(f"[{len(chunk.audio)} samples]", end=" ")  # chunk.audio: play it, send it, write it
print(f"\n{chunk.stats.audio_s:.2f} s of speech")
