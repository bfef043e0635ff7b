"""The background thread: order, bounded waiting, and errors that cannot be overlooked."""

import threading

import pytest

from core.runs.background import Background


def fail():
    raise OSError("the disk is full")


def test_pieces_run_in_order():
    done = []
    background = Background("test", 100)
    for number in range(20):
        background.put(done.append, number)
    background.drain()
    assert done == list(range(20))
    background.close()


def test_an_error_is_raised_at_every_later_step_and_nothing_more_runs():
    done = []
    background = Background("test", 100)
    background.put(fail)
    with pytest.raises(OSError, match="full"):
        background.drain()
    for _ in range(2):
        with pytest.raises(OSError, match="full"):
            background.put(done.append, 1)
        with pytest.raises(OSError, match="full"):
            background.drain()
    assert done == []
    background.close()


def test_putting_waits_while_too_much_is_unfinished():
    release = threading.Event()
    started = threading.Event()
    background = Background("test", 100)
    background.put(lambda: (started.set(), release.wait(10)), size=60)
    started.wait(10)
    background.put(lambda: None, size=40)  # there is room for this
    second = threading.Thread(
        target=background.put,
        args=(lambda: None,),
        kwargs={"size": 60},
    )
    second.start()
    # long enough for a put that does not wait
    second.join(0.2)
    assert second.is_alive()  # it waits for room
    release.set()
    second.join(10)
    assert not second.is_alive()
    background.close()
