"""The server, asked by OpenAI's own client and by one that misbehaves."""

import asyncio
import base64
import io
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import openai
import pytest
import soundfile
import uvicorn
from conftest import TINY

from mlx_rvqspec import server
from mlx_rvqspec.audio import to_pcm16
from mlx_rvqspec.cloned_voice import ClonedVoice
from mlx_rvqspec.commands.speaker import check_voices
from mlx_rvqspec.config import read_config
from mlx_rvqspec.generate import Engine, load
from mlx_rvqspec.load import fingerprints
from mlx_rvqspec.server import CONTENT_TYPES, Server, Sink
from mlx_rvqspec.utterance import GenerationError

SEED = {"seed": 3}
LONG = "A text of many words that goes on and on, " * 3


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load(TINY, compile=False)


@contextmanager
def listening(engine: Engine, **options):
    """Where a server of this engine listens."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(Server(engine, "tiny", **options).app(), log_level="error", timeout_graceful_shutdown=1)
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    running.should_exit = True
    thread.join()


def client_of(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def address(engine: Engine):
    """Where a server with room for one waiting request listens."""
    with listening(engine, num_waiting=1, max_characters=500) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> openai.OpenAI:
    return client_of(address)


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
    content = bytearray(response.content)
    if format == "pcm":
        return
    if format == "flac" and stream:  # it does not say how long it is, which is legal, but libsndfile will not read it
        info = int.from_bytes(content[18:26], "big")
        assert content[:8] == b"fLaC\0\0\0\x22" and info & (1 << 36) - 1 == 0 and not any(content[26:42])
        content[18:26] = (info | len(hello)).to_bytes(8, "big")
    data, sample_rate = soundfile.read(io.BytesIO(content), dtype="int16")
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
        ({"input": "Hi", "stream_format": "json"}, 400, "expected audio or sse"),
        ({"input": "Hi", "stream_format": "sse", "stream": False}, 400, "events are a stream"),
        ({"input": "Hi", "stream": "yes"}, 400, "expected true or false"),
        ({"input": "Hi", "language": "klingon"}, 400, "unknown language"),
        ({"input": "Hi", "on_runaway": "jump"}, 400, "on_runaway is 'jump'; expected one of keep"),
        ({"input": "Hi", "voice": "design"}, 400, "unknown speaker 'design'"),
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


def events_of(lines) -> list[dict]:
    return [json.loads(line.removeprefix("data: ")) for line in lines if line]


def test_events_carry_the_bytes_of_the_stream(client, hello):
    """As OpenAI's documentation reads them, and through the client's own reader of events."""
    how = {"model": "tiny", "input": "Hello.", "voice": "ryan", "response_format": "pcm"}
    with client.audio.speech.with_streaming_response.create(**how, stream_format="sse", extra_body=SEED) as response:
        assert response.headers["content-type"].startswith("text/event-stream") and response.headers["x-seed"] == "3"
        found = events_of(response.iter_lines())
    assert {event["type"] for event in found[:-1]} == {"speech.audio.delta"} and len(found) > 2
    sound = b"".join(base64.b64decode(event["audio"]) for event in found[:-1])
    assert np.array_equal(np.frombuffer(sound, "<i2"), hello)
    done, frames = found[-1], len(hello) // 1920
    assert (done["type"], done["finish_reason"]) == ("speech.audio.done", "stop")
    assert done["usage"] == {"input_tokens": 2, "output_tokens": frames, "total_tokens": frames + 2}
    body = {**how, **SEED, "stream_format": "sse"}
    stream = client.post("/audio/speech", body=body, cast_to=object, stream=True, stream_cls=openai.Stream[object])
    assert list(stream) == found


@pytest.mark.parametrize("format", ["wav", "mp3", "opus", "flac"])
def test_events_of_a_container_are_its_pieces(client, format):
    with client.audio.speech.with_streaming_response.create(
        model="tiny", input="Hello.", voice="ryan", response_format=format, stream_format="sse", extra_body=SEED
    ) as response:
        found = events_of(response.iter_lines())
    sound = b"".join(base64.b64decode(event["audio"]) for event in found[:-1])
    whole = ask(client, format).content
    assert len(sound) == len(whole) and (format == "opus" or sound == whole)  # an Ogg stream has a number by chance


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


def leave_early(address: str, size: int = 2000, **extra) -> None:
    """Ask for a long text, read a little of it and go."""
    host, port = address.removeprefix("http://").split(":")
    body = json.dumps({"input": LONG, "voice": "ryan", "response_format": "pcm", "seed": 1, **extra}).encode()
    head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head + body)
        while size > 0:
            size -= len(connection.recv(size))


@pytest.mark.parametrize("extra", [{}, {"stream_format": "sse"}, {"stream": False}])
def test_a_client_that_leaves_frees_the_engine_within_a_chunk(address, client, engine, hello, monkeypatch, extra):
    made, sound, before = [], engine._reader._sound, get(address, "/metrics")

    def slow(*args):
        done = sound(*args)
        time.sleep(0.3)  # a chunk takes longer than it takes to notice
        made.append(1)
        return done

    monkeypatch.setattr(engine._reader, "_sound", slow)
    leave_early(address, 0 if "stream" in extra else 2000, **extra)
    left_at = len(made)
    until(lambda: made)
    until(lambda: not get(address, "/health")["speaking"])
    assert len(made) <= left_at + 1
    monkeypatch.undo()
    after = get(address, "/metrics")
    assert after["mlx_tts_cancelled_total"] == before["mlx_tts_cancelled_total"] + 1
    assert np.array_equal(np.frombuffer(ask(client, "pcm").content, "<i2"), hello)


def test_a_client_that_takes_nothing_is_left(address, client, engine, monkeypatch):
    monkeypatch.setattr(server, "STALL_S", 0.5)
    monkeypatch.setattr(engine._reader, "_sound", lambda *args, s=engine._reader._sound: loud(*s(*args)))
    host, port = address.removeprefix("http://").split(":")
    body = json.dumps({"input": LONG, "voice": "ryan", "response_format": "pcm", "seed": 1}).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        connection.sendall(head + body)
        until(lambda: get(address, "/health")["speaking"])
        until(lambda: not get(address, "/health")["speaking"])
    monkeypatch.undo()
    assert ask(client, "pcm").content


def loud(piece, state):
    """A piece of sound so long that no buffer of a connection holds it."""
    return piece._replace(audio=np.tile(piece.audio, 200)), state


def test_a_client_that_leaves_the_queue_is_no_longer_in_it(address, client, hello):
    with client.audio.speech.with_streaming_response.create(
        model="tiny", input=LONG, voice="ryan", response_format="pcm", extra_body=SEED
    ) as first:
        next(first.iter_bytes())
        before = get(address, "/metrics")["mlx_tts_cancelled_total"]
        leave_early(address, 0)
        until(lambda: get(address, "/metrics")["mlx_tts_cancelled_total"] == before + 1)
        assert get(address, "/health") == {"status": "ok", "speaking": True, "waiting": 0}


def test_what_is_wrong_is_said_before_a_request_waits(address, client, engine, monkeypatch):
    """Also where the queue is full: a request that can never be spoken is not asked to come again."""
    sound = engine._reader._sound
    monkeypatch.setattr(engine._reader, "_sound", lambda *args: time.sleep(0.2) or sound(*args))  # it lasts
    with client.audio.speech.with_streaming_response.create(
        model="tiny", input=LONG, voice="ryan", response_format="pcm", extra_body=SEED
    ) as first:
        next(first.iter_bytes())
        waiting = threading.Thread(target=lambda: ask(client, "pcm"))
        waiting.start()
        until(lambda: get(address, "/health")["waiting"] == 1)
        for wrong in ({"voice": "alloy"}, {"input": "..."}, {"instructions": "sad"}, {"language": "klingon"}):
            with pytest.raises(openai.BadRequestError):
                ask(client, "pcm", **wrong)
        assert get(address, "/health")["waiting"] == 1
    monkeypatch.undo()
    waiting.join()


def test_metrics_count_what_was_spoken(address, client, hello):
    before = get(address, "/metrics")
    ask(client, "pcm")
    after = get(address, "/metrics")
    grown = {name.split("_")[2]: after[name] - before[name] for name in after}
    assert (grown["requests"], grown["characters"], grown["cancelled"], grown["failed"]) == (1, 6, 0, 0)
    assert grown["audio"] == pytest.approx(len(hello) / 24000) and grown["work"] > 0


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


def test_an_error_in_the_middle_is_an_event_or_a_broken_connection(address, client, engine, monkeypatch):
    sound = engine._reader._sound

    def broken(frames, chunk_frames, state, number):
        if number:
            raise GenerationError("audio is not finite")
        return sound(frames, chunk_frames, state, number)

    monkeypatch.setattr(engine._reader, "_sound", broken)
    how = {"model": "tiny", "input": "Hello.", "voice": "ryan", "response_format": "pcm", "stream_format": "sse"}
    events = client.post(
        "/audio/speech", body={**how, **SEED}, cast_to=object, stream=True, stream_cls=openai.Stream[object]
    )
    with pytest.raises(openai.APIError, match="is not finite"):
        assert next(events)["type"] == "speech.audio.delta"
        next(events)
    with pytest.raises(openai.APIConnectionError):
        ask(client, "pcm")


def say(client: openai.OpenAI, voice: str, **extra) -> np.ndarray:
    speech = client.audio.speech.create(
        model="tiny", input="Hi.", voice=voice, response_format="pcm", extra_body={**SEED, **extra}
    )
    return np.frombuffer(speech.content, "<i2")


def test_cloned_voices_are_served_by_name():
    base = load(TINY.with_name("tiny_base"), compile=False)
    base.sampling = replace(base.sampling, max_frames=3)
    voice = base.make_voice(np.load(TINY.with_name("tiny_base") / "golden.npz")["codec.enc_wav"], 24_000)
    with listening(base, clones={"me": voice}) as address:
        heard = say(client_of(address), "me")
        with pytest.raises(openai.BadRequestError, match="voice is 'you'; this server has me"):
            say(client_of(address), "you")
    assert np.array_equal(heard, to_pcm16(base.speak("Hi.", voice=voice, seed=3, chunk_frames=4).audio))


def test_a_designed_voice_is_served_as_design():
    design = load(TINY.with_name("tiny_voicedesign"), compile=False)
    design.sampling = replace(design.sampling, max_frames=3)
    words = "A calm, low voice."
    with listening(design) as address:
        heard = say(client_of(address), "design", instructions=words)
        with pytest.raises(openai.BadRequestError, match="takes a description"):
            say(client_of(address), "alloy")
    assert np.array_equal(heard, to_pcm16(design.speak("Hi.", instruct=words, seed=3, chunk_frames=4).audio))


@pytest.mark.parametrize(
    "folder, voices, reason",
    [
        ("tiny_base", [], "give their files with --voice"),
        ("tiny_base", ["me.voice", "other/me.voice"], "two of the voices have the name 'me'"),
        ("tiny_base", ["none.voice"], "no voice file"),
        ("tiny_customvoice", ["me.voice"], "need a Base model"),
    ],
)
def test_voices_that_cannot_be_served_are_refused_before_the_weights(tmp_path, folder, voices, reason):
    codes = np.zeros((2, 16), np.int32)
    voice = ClonedVoice(np.zeros(64, np.float32), codes, "a", "x", fingerprints(TINY.with_name("tiny_base"))[-1])
    (tmp_path / "other").mkdir()
    for name in ("me.voice", "other/me.voice"):
        voice.save(tmp_path / name)
    model = TINY.with_name(folder)
    with pytest.raises(ValueError, match=reason):
        check_voices(read_config(model), model, [tmp_path / name for name in voices])
