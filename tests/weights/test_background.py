"""Writing in the background, in order."""
import threading
import time

import pytest

from mmrla.weights.background import WRITER, BackgroundWriter
from mmrla.weights.errors import SaveError
from mmrla.weights.writing import BackgroundBackend


def test_tasks_run_in_their_order_beside_the_caller():
    writer, done, go = BackgroundWriter(), [], threading.Event()
    writer.submit(go.wait)
    for number in range(5):
        writer.submit(lambda number=number: done.append(number))
    assert done == [], 'the caller had to wait'
    go.set()
    writer.wait()
    assert done == [0, 1, 2, 3, 4]
    writer.submit(lambda: done.append(5))  # another thread
    writer.wait()
    assert done[-1] == 5


def test_an_error_is_raised_once_and_drops_what_depends_on_it():
    writer, done = BackgroundWriter(), []

    def fail():
        time.sleep(0.05)
        raise SaveError('no space')

    writer.submit(fail)
    writer.submit(lambda: done.append('pointer'))
    time.sleep(0.2)
    writer.submit(lambda: done.append('removal'))
    with pytest.raises(SaveError, match='no space'):
        writer.wait()
    assert done == []
    writer.wait()
    writer.submit(lambda: done.append('next'))
    writer.wait()
    assert done == ['next']


def test_a_file_is_written_whole_and_a_failed_one_is_named(tmp_path):
    backend = BackgroundBackend()
    backend.put(b'content', tmp_path / 'file.txt')
    WRITER.wait()
    assert (tmp_path / 'file.txt').read_bytes() == b'content'
    backend.put(b'', tmp_path / 'file.txt/epoch_1.pth')
    with pytest.raises(SaveError, match='epoch_1.pth cannot be written'):
        WRITER.wait()
