"""Command-line arguments that training and testing share."""
import argparse

from mmengine.config import DictAction

LAUNCHERS = ('none', 'pytorch', 'slurm', 'mpi')


def positive(text: str) -> int:
    """Return a number of 1 or more."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'{text} must be a number of 1 or more')
    return int(text)


def runner_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments that training and testing share.

    The names are those of mmdet's tools.

    Args:
        description: The first line of the help text.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument('config', help='path of the config file')
    parser.add_argument('--work-dir', help='folder for logs, checkpoints and results')
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, default={}, metavar='KEY=VALUE',
        help='settings that override the config, such as train_cfg.max_epochs=1')
    parser.add_argument(
        '--launcher', choices=LAUNCHERS, default='none',
        help='launcher of a distributed job; tools/dist_train.sh sets it')
    parser.add_argument(
        '--gpus', type=positive, metavar='N',
        help='run N processes on this machine, one for each GPU; without a GPU, on the CPU')
    parser.add_argument('--traceback', action='store_true',
                        help='show where an error of the config or the data was raised')
    parser.add_argument('--no-checks', action='store_true',
                        help='skip the checks of the config and the data before the first step')
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0,
                        help=argparse.SUPPRESS)
    return parser
