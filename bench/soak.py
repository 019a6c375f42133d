"""Does an engine hold out: memory over many requests and long texts, threads at once, clients that leave the server.

    python bench/soak.py [MODEL] [--num 200] [--paragraphs 24] [--seed 0]

Resident memory after each request of a different length, every tenth left early, its slope by least squares over the
second half, and over the passages of a long text, each alone and with one carried. Then 8 threads at once against
the same texts one by one, and clients of the server that leave after their first bytes: chunks made after that, and
whether the next request is served as ever. MODEL is the built-in voice unless given. The last line is JSON.
"""

import argparse
import json
import random
import socket
import threading
import time
import urllib.request

import numpy as np
import uvicorn
from harness import finish

import mlx_rvqspec as tts
from mlx_rvqspec.audio import to_pcm16
from mlx_rvqspec.bench.harness import environment, resident_bytes
from mlx_rvqspec.server import Server

WORDS = "one small dog ran over the old bridge while seven tall men stood in the rain and said nothing at all".split()


def sentence(rng: random.Random, num_words: int) -> str:
    return " ".join(rng.choices(WORDS, k=num_words)).capitalize() + "."


def slope_mb(sizes: list[int]) -> float:
    """MB per step over the second half."""
    half = np.array(sizes[len(sizes) // 2 :]) / 1e6
    return float(np.polyfit(np.arange(len(half)), half, 1)[0])


def requests_of(engine: tts.Engine, rng: random.Random, num: int) -> tuple[dict, list[int]]:
    """What came of ``num`` requests, and resident bytes after each."""
    frames, reasons, sizes = 0, {}, []
    for number in range(num):
        stream = engine.stream(sentence(rng, rng.randint(1, 12)), speaker=speaker_of(engine), seed=number)
        last = next(stream)
        if number % 10 < 9:  # the tenth caller leaves
            *_, last = [last, *stream]
        stream.close()
        frames += last.stats.frames
        reasons[last.finish_reason or "left"] = reasons.get(last.finish_reason or "left", 0) + 1
        sizes.append(resident_bytes())
    return {"requests": num, "frames": frames, "ended_by": reasons}, sizes


def speaker_of(engine: tts.Engine) -> str | None:
    return engine.speakers[0] if engine.speakers else None


def passages_of(engine: tts.Engine, text: str, seed: int, carry: int) -> list[int]:
    """Resident bytes after each passage of a text."""
    sizes, ended = [], 0
    for chunk in engine.stream(text, speaker=speaker_of(engine), seed=seed, carry=carry):
        if len(chunk.stats.attempts) > ended:
            ended = len(chunk.stats.attempts)
            sizes.append(resident_bytes())
    return sizes


def at_once(engine: tts.Engine, rng: random.Random, num_threads: int) -> dict:
    """Texts spoken by as many threads at once: how many have the codes of the same text alone."""
    texts, found = [sentence(rng, 2 + number) for number in range(num_threads)], {}

    def speak(number: int) -> list:
        return engine.speak(texts[number], speaker=speaker_of(engine), seed=number).codes.tolist()

    alone = [speak(number) for number in range(num_threads)]
    threads = [threading.Thread(target=lambda n=n: found.update({n: speak(n)})) for n in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"threads": num_threads, "equal_to_alone": sum(found[n] == alone[n] for n in range(num_threads))}


def leavers(engine: tts.Engine, rng: random.Random, num: int) -> dict:
    """Clients of a server that leave a long text: chunks made after each has left, and the request after it."""
    listener, made = socket.create_server(("127.0.0.1", 0)), []
    server = Server(engine, "soak")
    counted = server._counted
    server._counted = lambda *args: (made.append(1) or chunk for chunk in counted(*args))
    running = uvicorn.Server(uvicorn.Config(server.app(), log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    host, port = listener.getsockname()
    body = {"model": "soak", "voice": speaker_of(engine), "response_format": "pcm", "seed": 1}
    short = {**body, "input": "Hello there."}
    alone = to_pcm16(engine.speak(short["input"], speaker=speaker_of(engine), seed=1, chunk_frames=4).audio).tobytes()
    behind, waits_s, same = [], [], 0
    for _ in range(num):
        data = json.dumps({**body, "input": sentence(rng, 60)}).encode()
        head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        with socket.create_connection((host, port)) as connection:
            connection.sendall(head + data)
            connection.recv(2000)
        left, begin = len(made), time.perf_counter()
        while server.turn.locked():
            time.sleep(0.001)
        waits_s.append(time.perf_counter() - begin)
        behind.append(len(made) - left)
        request = urllib.request.Request(f"http://{host}:{port}/v1/audio/speech", json.dumps(short).encode())
        with urllib.request.urlopen(request) as response:
            same += response.read() == alone
    running.should_exit = True
    thread.join()
    return {
        "clients_that_left": num,
        "most_chunks_made_after": max(behind),
        "longest_until_free_s": max(waits_s),
        "next_request_as_ever": same,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--num", type=int, default=200)
    parser.add_argument("--paragraphs", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, engine = random.Random(options.seed), tts.load(options.model)
    begin = time.perf_counter()
    counts, requests = requests_of(engine, rng, options.num)
    text = "\n\n".join(sentence(rng, 8) for _ in range(options.paragraphs))
    passages = [passages_of(engine, text, options.seed, carry) for carry in (0, 1)]
    finish(
        "soak",
        {
            **environment(),
            "model": options.model or "built-in voice",
            "seed": options.seed,
            **counts,
            "mb_per_request": slope_mb(requests),
            "mb_after_first": requests[0] / 1e6,
            "mb_after_last": requests[-1] / 1e6,
            "passages": len(passages[0]),
            "mb_per_passage": slope_mb(passages[0]),
            "mb_per_passage_with_carry_1": slope_mb(passages[1]),
            "at_once": at_once(engine, rng, 8),
            "server": leavers(engine, rng, 10),
            "wall_s": time.perf_counter() - begin,
        },
    )


if __name__ == "__main__":
    main()
