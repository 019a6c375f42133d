#!/bin/sh
# Pipe speech into another program while it is being made: here gzip, elsewhere aplay or
# ffmpeg -f s16le -ar 24000 -i - speech.m4a. Raw samples are 16 bit, little-endian, mono, 24 kHz.
set -e
echo "What comes in here goes out there." |
    mlx-tts speak - --seed 6 --quiet -o - --format pcm |
    gzip > speech.pcm.gz
