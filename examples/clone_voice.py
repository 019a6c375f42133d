"""Take a voice from ref.wav and speak with it: 3 to 30 s of one person who has agreed, and the exact words."""

import soundfile

import mlx_rvqspec as tts

engine = tts.load("Qwen/Qwen3-TTS-12Hz-0.6B-Base")
audio, sample_rate = tts.read_recording("ref.wav")
voice = engine.make_voice(audio, sample_rate, text="What is said in it.")
voice.save("me.voice")  # to use again: engine.speak(..., voice="me.voice")

speech = engine.speak("Hi.", voice=voice, language="en", seed=7)
soundfile.write("mine.wav", speech.audio, speech.sample_rate)
print(f"mine.wav: {speech.stats.audio_s:.1f} s")
