"""What the tools' command lines share."""
import argparse
import contextlib
import os
import re
from pathlib import Path
from typing import Iterator, Optional

import torch
from mmengine.config import Config, DictAction
from mmengine.logging import MMLogger
from mmengine.registry import MODELS, RUNNERS
from mmengine.runner import Runner
from torch import nn

from mmrla.datasets.errors import DataError
from mmrla.engine.hooks import DivergedError
from mmrla.weights.fit import load_weights
from mmrla.weights.reading import CheckpointError
from mmrla.weights.writing import ADVICE, explain

# The clone, or what a wheel carries of it.
MIM = Path(__file__).parent.parent / '.mim'
REPO = MIM if MIM.exists() else MIM.parent.parent
LAUNCHERS = ('none', 'pytorch', 'slurm', 'mpi')


def base_parser(description: str) -> argparse.ArgumentParser:
    """A parser with the arguments that training and testing share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument('config', help='the config file')
    parser.add_argument('--work-dir', help='where logs and results go')
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, default={}, metavar='KEY=VALUE',
        help='settings that override the config\'s, such as train_cfg.max_epochs=1')
    parser.add_argument(
        '--launcher', choices=LAUNCHERS, default='none',
        help='what started the processes; see tools/dist_train.sh')
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0,
                        help=argparse.SUPPRESS)
    return parser


def load_config(args: argparse.Namespace) -> Config:
    """The config, with the shared arguments written into it."""
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    if not Path(args.config).is_file():
        raise SystemExit(f'config {args.config} does not exist')
    cfg = Config.fromfile(args.config)
    cfg.merge_from_dict(args.cfg_options)
    cfg.launcher = args.launcher
    cfg.work_dir = args.work_dir or cfg.get('work_dir') or f'work_dirs/{Path(args.config).stem}'
    return cfg


def build_runner(cfg: Config) -> Runner:
    """The config's runner, mmengine's own unless it names another."""
    return RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
    """End with one line, not a traceback, on what a user can mend without the code."""
    try:
        yield
    except DataError as error:  # a loader's worker puts its traceback before
        raise SystemExit(str(error).strip().splitlines()[-1].removeprefix(
            'mmrla.datasets.errors.DataError: ')) from None
    except (CheckpointError, DivergedError) as error:
        raise SystemExit(str(error)) from None
    except torch.OutOfMemoryError as error:
        raise SystemExit(out_of_memory(str(error).splitlines()[0])) from None
    except MemoryError:
        raise SystemExit(out_of_memory('the machine has no memory left')) from None
    except OSError as error:
        if error.errno not in ADVICE:
            raise
        raise SystemExit(explain(error)) from None
    except RuntimeError as error:
        reason = _known_reason(str(error))
        if reason is None:
            raise
        raise SystemExit(reason) from error


def out_of_memory(reason: str) -> str:
    """Which settings need less memory."""
    return (f'out of memory ({reason}). What needs less: a smaller train_dataloader.batch_size '
            '(the learning rate follows by itself where auto_scale_lr is enabled), --amp on a '
            'GPU, model.backbone.with_cp=True, a smaller scale of Resize in train_pipeline, fewer '
            'train_dataloader.num_workers. The last checkpoint is good: --resume')


def _known_reason(message: str) -> Optional[str]:
    """What an error of torch means, where its own words do not say it."""
    if "can't allocate memory" in message or 'Cannot allocate memory' in message:
        return out_of_memory(message.splitlines()[0])
    if re.search('DataLoader worker .* (killed by signal|exited unexpectedly)', message):
        return (f'{message.splitlines()[0]} A loader was ended from outside, mostly for want of '
                'memory: fewer train_dataloader.num_workers need less. Go on with --resume')
    if re.search('Connection closed by peer|Connection reset by peer|NCCL|Timed out waiting|'
                 'Broken pipe|Socket Timeout', message):
        return ('another process of this run is gone; what it said is above, or in the log of its '
                f'machine ({message.splitlines()[0][:200]}). Go on with --resume')
    return None


def silence() -> None:
    """Let mmengine say errors only, in a tool whose output is its own."""
    MMLogger.get_instance('mmrla', logger_name='mmrla', log_level='ERROR')


def read_backbone(config: str, checkpoint: str) -> nn.Module:
    """A config's backbone with a checkpoint's weights, in eval mode.

    Weights that the checkpoint lacks are an error: a tool that shows what a
    network learnt must not show initial values.
    """
    if not Path(config).is_file():
        raise SystemExit(f'config {config} does not exist')
    backbone = MODELS.build(Config.fromfile(config).model.backbone)
    with clear_errors():
        report = load_weights(backbone, str(checkpoint))
    if report.initial:
        raise SystemExit(f'checkpoint {checkpoint} is not of {config}: {report}')
    return backbone.eval()
