"""Process groups for machines without a GPU, and the end of a process group.

mmengine's launchers (0.10.7) call ``torch.cuda.set_device`` and therefore need one.
"""
import atexit
import gc
import os
import subprocess
from datetime import timedelta
from typing import Callable, Dict, Optional

import torch.distributed as dist


def init_gloo(launcher: str, timeout: Optional[int] = None, port: Optional[int] = None) -> None:
    """Initialize the default process group over gloo.

    Args:
        launcher: ``'pytorch'``, ``'slurm'`` or ``'mpi'``.
        timeout: Seconds that a collective operation may take. None for torch's own.
        port: The port of the first process under Slurm.
    """
    LAUNCHERS[launcher](port)
    options = {} if timeout is None else dict(timeout=timedelta(seconds=timeout))
    dist.init_process_group('gloo', **options)


def destroy_at_exit() -> None:
    """Destroy the process group when the interpreter exits.

    A thread of gloo that still holds a tensor while the interpreter is finalised aborts the
    process (https://github.com/pytorch/pytorch/issues/190489), and torchrun reports a failure
    of a finished run. Call this only when no collective operation is pending: destroying the
    group would wait for it.
    """
    atexit.unregister(destroy_process_group)
    atexit.register(destroy_process_group)


def destroy_process_group() -> None:
    """Destroy the process group, if there is one, and end its threads.

    The threads of gloo end when the last reference to the group is released. A model in DDP has
    a reference too. If that is the last one, torch waits for the threads while it holds the GIL,
    and a thread that needs the GIL to release a tensor never ends. Therefore models that are
    garbage are freed first. They are in reference cycles with their runner.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return
    group = dist.group.WORLD
    dist.destroy_process_group()
    gc.collect()
    del group  # torch releases the GIL here


def _set_slurm_environment(port: Optional[int]) -> None:
    """Set the variables of torch's launcher from those of Slurm."""
    nodes = os.environ['SLURM_NODELIST']
    if 'MASTER_ADDR' not in os.environ:
        os.environ['MASTER_ADDR'] = subprocess.run(
            ['scontrol', 'show', 'hostname', nodes], check=True, text=True,
            stdout=subprocess.PIPE).stdout.split()[0]
    if port is not None:
        os.environ['MASTER_PORT'] = str(port)
    os.environ.setdefault('MASTER_PORT', '29500')
    os.environ.update(
        RANK=os.environ['SLURM_PROCID'], WORLD_SIZE=os.environ['SLURM_NTASKS'],
        LOCAL_RANK=os.environ.get('SLURM_LOCALID', '0'))


def _set_mpi_environment(port: Optional[int]) -> None:
    """Set the variables of torch's launcher from those of Open MPI."""
    if 'MASTER_ADDR' not in os.environ:
        raise KeyError('the environment variable MASTER_ADDR is not set')
    os.environ.setdefault('MASTER_PORT', str(port or 29500))
    os.environ.update(
        RANK=os.environ['OMPI_COMM_WORLD_RANK'], WORLD_SIZE=os.environ['OMPI_COMM_WORLD_SIZE'],
        LOCAL_RANK=os.environ['OMPI_COMM_WORLD_LOCAL_RANK'])


# torchrun sets the variables itself.
LAUNCHERS: Dict[str, Callable[[Optional[int]], None]] = dict(
    pytorch=lambda port: None, slurm=_set_slurm_environment, mpi=_set_mpi_environment)
