"""What the work dir of a run holds: its config, its curves, its environment."""
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from mmengine.config import Config

from mmrla.engine.config_text import parse_config
from mmrla.inference.checkpoints import best_checkpoint

Curve = List[Tuple[float, float]]
# Scalars of mmengine's logger that count or time something, and no curves of their own.
COUNTERS = ('step', 'iter', 'epoch', 'time', 'data_time', 'memory')
MAX_POINTS = 400
ENVIRONMENT = (('Python', r'^\s*Python: (\S+)'), ('PyTorch', r'^\s*PyTorch: (\S+)'),
               ('CUDA', r'^\s*CUDA_HOME: .*\n\s*NVCC: .*release ([\d.]+)'),
               ('MMEngine', r'^\s*MMEngine: (\S+)'), ('GPUs', r'^\s*(GPU [\d,]+: .+)$'),
               ('processes', r'^\s*GPU number: (\d+)'))


class NoRunError(ValueError):
    """A folder that holds no run; the message names it."""


class Run(NamedTuple):
    """A training run.

    Attributes:
        name: The name of the work dir.
        folder: The work dir.
        config: The config of the last training.
        text: The same as the text that the training wrote.
        curves: By the name of a scalar, (step, value): the iteration for losses and the
            learning rate, the epoch for metrics.
        facts: What was run and from what, for people.
    """
    name: str
    folder: Path
    config: Config
    text: str
    curves: Dict[str, Curve]
    facts: Dict[str, str]

    @property
    def checkpoint(self) -> Optional[Path]:
        """The best checkpoint by the run's own metric, else the last."""
        return best_checkpoint(self.folder)


def _modified(path: Path) -> float:
    return path.stat().st_mtime


def read_run(folder: Path) -> Run:
    """Read the work dir of a run.

    Args:
        folder: What ``--work-dir`` was.
    """
    if not folder.is_dir():
        raise NoRunError(f'{folder} is not a folder: give the work dir of a training')
    logs = sorted(path for path in folder.glob('*/vis_data/scalars.json') if path.is_file())
    if not logs:
        raise NoRunError(f'{folder} holds no log of a training (*/vis_data/scalars.json)')
    path = _config_file(logs)
    text = path.read_text()
    config = parse_config(text, str(path))
    curves = _curves(logs)
    if not curves:
        raise NoRunError(f'{folder} holds a log without a single value: was anything trained?')
    name = folder.resolve().name
    return Run(name, folder, config, text, curves, _facts(folder, config, logs, curves))


def _config_file(logs: List[Path]) -> Path:
    for log in reversed(logs):
        path = log.with_name('config.py')
        if path.is_file():
            return path
    raise NoRunError(f'{logs[-1].parent} holds no config.py, which every training writes')


def _lines(path: Path) -> Iterator[Dict[str, Any]]:
    for line in path.read_text().splitlines():
        try:
            scalars = json.loads(line)
        except (ValueError, RecursionError):  # the last line of a run that was killed
            continue
        if isinstance(scalars, dict):
            yield scalars


def _curves(logs: List[Path]) -> Dict[str, Curve]:
    """All scalars; where the logs of a resumed run overlap, the later one counts."""
    curves: Dict[str, Dict[float, float]] = {}
    for path in logs:
        for scalars in _lines(path):
            step = scalars.get('step', scalars.get('iter', 0))
            for name, value in scalars.items():
                if name not in COUNTERS and isinstance(value, (int, float)):
                    curves.setdefault(name, {})[step] = value
    return {name: thin(sorted(points.items())) for name, points in curves.items()}


def thin(points: Curve, limit: int = MAX_POINTS) -> Curve:
    """At most so many points, each the mean of its neighbours; the last is kept."""
    if len(points) <= limit:
        return points
    size = -(-len(points) // limit)
    groups = [points[start:start + size] for start in range(0, len(points), size)]
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]


def _facts(folder: Path, config: Config, logs: List[Path], curves: Dict[str, Curve]
           ) -> Dict[str, str]:
    text = _log_text(logs[-1])
    facts = dict(
        detector=str(config.get('model', {}).get('type', '')),
        backbone=describe_backbone(config),
        weights=describe_weights(config),
        data=_data(config, text),
        schedule=_schedule(config, curves),
        started=_started(logs[0]),
        duration=_duration(logs),
        memory=_memory(logs))
    found = {name: re.search(pattern, text, re.M) for name, pattern in ENVIRONMENT}
    facts['environment'] = ', '.join(
        f'{name} {match[1]}' for name, match in found.items() if match)
    facts['seed'] = str(config.get('randomness', {}).get('seed', '')) or _seed(text)
    facts['folder'] = str(folder)
    return {name: value for name, value in facts.items() if value}


def _log_text(scalars: Path) -> str:
    """The text log of a training, without what follows its first megabyte."""
    for path in filter(Path.is_file, scalars.parent.parent.glob('*.log')):
        with path.open(errors='replace') as file:
            return file.read(2**20)
    return ''


def _seed(text: str) -> str:
    match = re.search(r'^\s*seed: (\d+)', text, re.M)
    return match[1] if match else ''


def describe_backbone(config: Config) -> str:
    """The backbone of a config, for people."""
    backbone = config.get('model', {}).get('backbone') or {}
    inner = backbone.get('backbone') if isinstance(backbone.get('backbone'), dict) else {}
    name = str(backbone.get('type', ''))
    parts = [name + (f'({inner["type"]})' if 'type' in inner else '')]
    depth = backbone.get('depth') or inner.get('depth')
    if depth:
        parts.append(f'depth {depth}')
    rla = backbone.get('rla')
    if isinstance(rla, dict):
        parts.append('RLA ' + ', '.join(f'{key} {value}' for key, value in rla.items()))
    elif 'rla' in backbone or name == 'RLAResNet':
        parts.append('no RLA')
    if backbone.get('attention'):
        parts.append(f'attention {backbone.attention.get("type")}')
    return ', '.join(parts)


def describe_weights(config: Config) -> str:
    """The weights that a config starts from, for people."""
    if config.get('load_from'):
        return f'{"resumed from " if config.get("resume") else ""}{config.load_from}'
    init = (config.get('model', {}).get('backbone') or {}).get('init_cfg')
    for item in init if isinstance(init, (list, tuple)) else [init]:
        if isinstance(item, dict) and item.get('checkpoint'):
            return f'backbone from {item["checkpoint"]}'
    return 'random initial values'


def innermost(dataset: Any) -> Any:
    """The data set inside RepeatDataset and similar wrappers."""
    while isinstance(dataset, dict) and isinstance(dataset.get('dataset'), dict):
        dataset = dataset['dataset']
    return dataset or {}


def _data(config: Config, text: str) -> str:
    loader = config.get('train_dataloader') or {}
    dataset = innermost(loader.get('dataset'))
    place = f'{dataset.get("data_root") or ""}{dataset.get("ann_file") or ""}'
    steps = re.search(r'Epoch\(train\)\s+\[\d+\]\[\s*\d+/(\d+)\]', text)
    batch = loader.get('batch_size')
    parts = [place] if place else []
    if steps and batch:
        parts.append(f'{steps[1]} iterations per epoch, {batch} images per process')
    return ', '.join(parts)


def _schedule(config: Config, curves: Dict[str, Curve]) -> str:
    optimizer = (config.get('optim_wrapper') or {}).get('optimizer') or {}
    epochs = (config.get('train_cfg') or {}).get('max_epochs')
    parts = [f'{epochs} epochs'] if epochs else []
    if 'loss' in curves:
        parts.append(f'{int(curves["loss"][-1][0]):,} iterations done')
    if optimizer:
        parts.append(f'{optimizer.get("type")} at {optimizer.get("lr"):g}')
    return ', '.join(parts)


def _started(log: Path) -> str:
    try:
        time = datetime.strptime(log.parent.parent.name, '%Y%m%d_%H%M%S')
    except ValueError:
        return ''
    return time.strftime('%Y-%m-%d %H:%M')


def _duration(logs: List[Path]) -> str:
    """The time between the start of each training and its last logged value."""
    seconds = 0.0
    for log in logs:
        try:
            start = datetime.strptime(log.parent.parent.name, '%Y%m%d_%H%M%S').timestamp()
        except ValueError:
            return ''
        seconds += max(0.0, _modified(log) - start)
    hours, minutes = divmod(round(seconds / 60), 60)
    return f'{hours} h {minutes} min' if hours else f'{minutes} min'


def _memory(logs: List[Path]) -> str:
    peak = max((scalars['memory'] for log in logs for scalars in _lines(log)
                if isinstance(scalars.get('memory'), (int, float))), default=0)
    return f'{peak:,.0f} MB on the GPU at most' if peak else ''
