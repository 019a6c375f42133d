"""The owner thread: calls from any thread, its own among them."""

import gc
import threading

from mlx_rvqspec.owner import Owner


def test_a_stream_that_the_owner_collects_is_closed_and_nothing_waits_for_itself():
    owner, closed, done = Owner(), [], threading.Event()

    def stream():
        try:
            yield
        finally:
            owner.run(closed.append, threading.current_thread())

    def drop_and_collect():
        dropped = [stream()]
        next(dropped[0])
        dropped.append(dropped)  # a cycle, as a traceback makes: only the collector finds it
        del dropped
        owner.run(gc.collect)
        done.set()

    threading.Thread(target=drop_and_collect, daemon=True).start()
    assert done.wait(10)
    assert [thread.name for thread in closed] == ["mlx-rvqspec"]
