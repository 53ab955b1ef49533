"""Fixtures and session checks of all tests."""
import contextlib
import functools
import gc
import logging

import pytest
import torch
from mmengine.config import utils as config_utils
from mmengine.registry import DefaultScope

import mmrla  # noqa: F401
from support.malicious import Malicious
from support.memory import LIMIT, peak_memory, release_memory, resident_memory
from support.networks import randomise as randomise_network

# The peak memory of this process, and of all processes by name: (bytes, the test that reached it).
PEAK = pytest.StashKey[tuple]()
PEAKS = pytest.StashKey[dict]()


@pytest.fixture(autouse=True)
def _quiet_and_repeatable():
    """Log errors only, because mmengine logs every initial value, and set a fixed seed."""
    logging.getLogger('mmengine').setLevel(logging.ERROR)
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope='session')
def _metafiles_are_read_once():
    """Remember where mmdet's configs are.

    For each base such as ``mmdet::faster_rcnn/...`` mmengine reads about 100 YAML files, which is
    most of the time of reading a config.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config_utils, '_get_cfg_metainfo',
                      functools.cache(config_utils._get_cfg_metainfo))
        yield


@pytest.fixture(autouse=True)
def _no_default_scope():
    """Forget the default scope that a test set, because it changes what a later test builds."""
    yield
    DefaultScope._instance_dict.clear()


@pytest.fixture(autouse=True)
def _release_memory():
    """Release free memory after a test if the process uses more than half of the limit."""
    yield
    if resident_memory() > 1 << 30:
        release_memory()


@pytest.fixture
def code(tmp_path):
    """Return an object that runs code when it is unpickled, and the file that the code creates."""
    return Malicious(tmp_path / 'it-ran'), tmp_path / 'it-ran'


@pytest.fixture(params=['cpu', *(['cuda'] if torch.cuda.is_available() else [])])
def each_device(request):
    """Run a test on the CPU, and on a GPU if there is one: new tensors are created there."""
    device = torch.device(request.param)
    with contextlib.nullcontext() if device.type == 'cpu' else device:
        yield device


@pytest.fixture
def randomise():
    """Return a function that fills a network with random values."""
    return randomise_network


def pytest_configure(config):
    """Prepare the record of the peak memory of each test process."""
    config.stash[PEAK] = peak_memory(), 'no test'
    config.stash[PEAKS] = {}


def pytest_collection_finish(session):
    """Exclude the imported modules from garbage collection, which runs after most tests."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Remember the last test in which the peak memory of this process rose."""
    handled = yield
    peak = peak_memory()
    if peak > item.config.stash[PEAK][0]:
        item.config.stash[PEAK] = peak, item.nodeid
    return handled


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    """Record the peak memory of a worker of pytest-xdist."""
    peak = getattr(node, 'workeroutput', {}).get('peak_memory')
    if peak is not None:
        node.config.stash[PEAKS][node.gateway.id] = tuple(peak)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    """Fail the session if a test process needed more memory than the limit."""
    if hasattr(session.config, 'workeroutput'):  # a worker of pytest-xdist
        session.config.workeroutput['peak_memory'] = session.config.stash[PEAK]
        return
    peaks = session.config.stash[PEAKS]
    peaks['main'] = session.config.stash[PEAK]
    if max(peak for peak, _ in peaks.values()) > LIMIT and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    """Print the peak memory of each test process, and the test that reached it."""
    for name, (peak, test) in config.stash[PEAKS].items():
        verdict = f', exceeds the limit of {LIMIT / 2**30:g} GB' if peak > LIMIT else ''
        terminalreporter.write_line(
            f'peak memory of {name}: {peak / 2**30:.2f} GB{verdict} ({test})', red=bool(verdict))


@pytest.fixture
def malicious(tmp_path, code):
    """A checkpoint that carries code, and the file that the code would make."""
    thing, trace = code
    torch.save(dict(state_dict={}, message_hub=thing), tmp_path / 'malicious.pth')
    return tmp_path / 'malicious.pth', trace
