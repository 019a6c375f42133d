#!/bin/sh
# Pipe speech into another program while it is being made: here gzip, elsewhere aplay or
# ffmpeg -f s16le -ar 24000 -i - speech.m4a. Raw samples are 16 bit, little-endian, mono, 24 kHz.
set -e
echo "Read from a pipe, written to a pipe." |
    mlx-tts speak - --seed 7 --quiet -o - --format pcm |
    gzip > speech.pcm.gz
