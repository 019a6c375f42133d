"""Use the sound while it is being made; each chunk here is 4 frames of 80 ms."""

import numpy as np

import mlx_rvqspec as tts

engine = tts.load()
chunks = []
for chunk in engine.stream("This sentence arrives in pieces.", speaker=engine.speakers[0], chunk_frames=4, seed=6):
    chunks.append(chunk.audio)  # float32, -1..1: play it, send it, write it
    print(f"{len(chunk.audio)} samples, {chunk.stats.audio_s:.2f} s so far")

print(f"first sound after {chunk.stats.time_to_first_audio_s:.2f} s, {len(np.concatenate(chunks))} samples in all")
