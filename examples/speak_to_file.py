"""Speak a sentence into a WAV file: python speak_to_file.py [TEXT] [FILE]"""

import sys

import mlx_rvqspec as tts
from mlx_rvqspec.audio import open_file

text = sys.argv[1] if len(sys.argv) > 1 else "The quick brown fox jumps over the lazy dog."
path = sys.argv[2] if len(sys.argv) > 2 else "fox.wav"

engine = tts.load()  # or a folder, or a hub id such as "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice"
speech = engine.speak(text, speaker=engine.speakers[0], seed=6)
with open_file(path, speech.sample_rate) as write:
    write(speech.audio)
print(f"{path}: {len(speech.audio) / speech.sample_rate:.2f} s, ended by {speech.finish_reason}")
