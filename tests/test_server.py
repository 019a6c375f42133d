"""The server, asked by OpenAI's own client and by one that misbehaves."""

import asyncio
import io
import json
import socket
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import openai
import pytest
import soundfile
import uvicorn
from conftest import TINY

from mlx_rvqspec.audio import to_pcm16
from mlx_rvqspec.generate import Engine, load
from mlx_rvqspec.server import CONTENT_TYPES, Server, Sink
from mlx_rvqspec.utterance import GenerationError

SEED = {"seed": 3}
LONG = "A text of many words that goes on and on, " * 3


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load(TINY, compile=False)


@pytest.fixture(scope="module")
def address(engine: Engine):
    """Where a server with room for one waiting request listens."""
    listener = socket.create_server(("127.0.0.1", 0))
    app = Server(engine, "tiny", num_waiting=1, max_characters=500).app()
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def client(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def hello(engine: Engine) -> np.ndarray:
    return to_pcm16(engine.speak("Hello.", speaker="ryan", seed=3, chunk_frames=4).audio)


def ask(client: openai.OpenAI, format: str, text: str = "Hello.", **extra):
    return client.audio.speech.create(
        model="tiny", input=text, voice="ryan", response_format=format, extra_body={**SEED, **extra}
    )


def get(address: str, path: str) -> dict[str, float] | dict:
    with urllib.request.urlopen(address + path) as response:
        text = response.read().decode()
    return json.loads(text) if text.startswith("{") else {k: float(v) for k, v in map(str.split, text.splitlines())}


def test_streamed_and_whole_samples_are_those_of_the_engine(client, hello):
    whole = ask(client, "pcm", stream=False)
    assert whole.response.headers["x-sample-rate"] == "24000" and whole.response.headers["x-seed"] == "3"
    assert np.array_equal(np.frombuffer(whole.content, "<i2"), hello)
    with client.audio.speech.with_streaming_response.create(
        model="tiny", input="Hello.", voice="ryan", response_format="pcm", extra_body=SEED
    ) as response:
        parts = list(response.iter_bytes())
    assert b"".join(parts) == whole.content and len(parts) > 1


@pytest.mark.parametrize("format, stream", [*((name, True) for name in CONTENT_TYPES), ("wav", False), ("mp3", False)])
def test_a_response_is_one_container_of_the_type_it_claims(client, hello, format, stream):
    response = ask(client, format, stream=stream)
    assert response.response.headers["content-type"] == CONTENT_TYPES[format]
    if format == "pcm":
        return
    if format == "flac" and stream:  # its first 42 bytes do not say how long it is, which libsndfile cannot read
        whole = ask(client, format, stream=False).content
        assert response.content[:12] == whole[:12] and response.content[42:] == whole[42:]
        return
    data, sample_rate = soundfile.read(io.BytesIO(response.content), dtype="int16")
    assert sample_rate == 24000
    if format in ("wav", "flac"):
        assert np.array_equal(data, hello)
    else:
        assert 0 <= len(data) - len(hello) < 2400  # what encoders put around the sound


def test_a_sink_forgets_what_is_behind_it():
    sink = Sink()
    sink.write(b"head")
    sink.write(b"body")
    sink.seek(0)
    sink.write(b"HEAD")
    sink.seek(0, 2)
    sink.write(b"end")
    assert (sink.take(), sink.take(), sink.tell()) == (b"headbodyend", b"", 11)


@pytest.mark.parametrize(
    "body, status, reason",
    [
        ({"input": ""}, 400, "text is empty"),
        ({"input": "Hi", "voice": "alloy"}, 400, "unknown speaker 'alloy'; this model has serena"),
        ({"input": "Hi", "voice": 5}, 400, "voice is 5; expected a string"),
        ({"input": "Hi", "response_format": ["wav"]}, 400, "expected a string"),
        ({"input": "Hi", "model": "tts-1"}, 404, "'tiny' is"),
        ({"input": "Hi", "response_format": "aac"}, 400, "expected one of wav"),
        ({"input": "Hi", "speed": 2}, 400, "speed is fixed"),
        ({"input": "Hi", "stream_format": "sse"}, 400, "not supported"),
        ({"input": "Hi", "instructions": "sad"}, 400, "ignores instructions"),
        ({"input": "Hi", "seed": -1}, 400, "seed is -1"),
        ({"input": "Hi", "colour": 1}, 400, "unknown parameter 'colour'"),
        ({"input": "a" * 501}, 400, "at most 500"),
        ({}, 400, "input is missing"),
        ([], 400, "no JSON object"),
        ("x" * (1 << 20), 413, "more than"),
    ],
)
def test_a_bad_request_is_one_clear_error(address, body, status, reason):
    if isinstance(body, dict):
        body = {"voice": "ryan", **body}
    request = urllib.request.Request(f"{address}/v1/audio/speech", json.dumps(body).encode(), method="POST")
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(request)
    assert refusal.value.code == status
    assert reason in json.loads(refusal.value.read())["error"]["message"]


def test_what_is_served_can_be_asked(address, client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert "ryan" in get(address, "/v1/audio/voices")["voices"]
    assert get(address, "/health")["status"] == "ok"


def until(condition) -> float:
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < 60
        time.sleep(0.02)
    return time.monotonic() - begin


def leave_early(address: str, size: int = 2000) -> None:
    """Ask for a long text, read a little of it and go."""
    host, port = address.removeprefix("http://").split(":")
    body = json.dumps({"input": LONG, "voice": "ryan", "response_format": "pcm", "seed": 1}).encode()
    head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head + body)
        while size > 0:
            size -= len(connection.recv(size))


def test_a_client_that_leaves_frees_the_engine_within_a_chunk(address, client, hello):
    before = get(address, "/metrics")
    leave_early(address)
    until(lambda: not get(address, "/health")["speaking"])
    after = get(address, "/metrics")
    assert after["mlx_tts_cancelled_total"] == before["mlx_tts_cancelled_total"] + 1
    assert after["mlx_tts_audio_seconds_total"] - before["mlx_tts_audio_seconds_total"] < 4  # of some twenty
    assert np.array_equal(np.frombuffer(ask(client, "pcm").content, "<i2"), hello)


def test_a_client_that_left_before_the_first_byte_frees_the_engine(engine):
    server = Server(engine, "tiny")
    body = json.dumps({"input": "Hello.", "voice": "ryan", **SEED}).encode()
    scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "method": "POST", "query_string": b""}
    scope |= {"path": "/v1/audio/speech", "headers": []}

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        raise OSError("the connection is closed")

    asyncio.run(server.app()(scope, receive, send))
    assert not server.turn.locked() and server.counts["cancelled"] == 1


def test_one_speaks_one_waits_and_the_third_is_told_to_come_later(address, client, hello):
    heard = []
    with client.audio.speech.with_streaming_response.create(
        model="tiny", input=LONG, voice="ryan", response_format="pcm", extra_body=SEED
    ) as first:
        next(first.iter_bytes())
        waiting = threading.Thread(target=lambda: heard.append(ask(client, "pcm").content))
        waiting.start()
        until(lambda: get(address, "/health")["waiting"] == 1)
        with pytest.raises(openai.RateLimitError, match="1 requests are waiting") as refusal:
            ask(client, "pcm")
        assert refusal.value.response.headers["retry-after"] == "2"
        assert not heard
    waiting.join()  # the first has left
    assert np.array_equal(np.frombuffer(heard[0], "<i2"), hello)


def test_an_error_while_speaking_is_seen(address, client, engine, monkeypatch):
    def broken(*_):
        raise GenerationError("audio from frame 0 on is not finite")

    monkeypatch.setattr(engine._reader, "_sound", broken)
    with pytest.raises(openai.InternalServerError, match="is not finite"):
        ask(client, "pcm")
    monkeypatch.undo()
    assert ask(client, "pcm").content
