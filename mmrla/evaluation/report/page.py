"""Put everything about the runs into one HTML file."""
import html
import json
import math
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np
from mmengine.config import Config

import mmrla
from mmrla.weights.writing import write_file

from . import cost, inside, matching, pictures, results
from .runs import Run

# Settings of a config that differ between any two runs.
IGNORED = ('work_dir', 'launcher', 'resume')
Progress = Callable[[str], None]


class Options:
    """What goes into a report.

    Args:
        score: Detections from this score on count in the matrix, the errors and the images.
        images: How many validation images are shown.
        inside: On how many of them the hidden state is shown.
        cost: Whether the backbones are built and timed.
    """

    def __init__(self, score: float = 0.3, images: int = 48, inside: int = 3,
                 cost: bool = True) -> None:
        self.score, self.images, self.inside, self.cost = score, images, inside, cost


def write_report(runs: Sequence[Run], output: Path, options: Optional[Options] = None,
                 progress: Progress = lambda step: None) -> Dict[str, Any]:
    """Write the page.

    Args:
        runs: The first one is what the others are compared with.
        output: The HTML file.
        options: What goes into it.
        progress: Is told what is being done.

    Returns:
        dict: The content of the page.
    """
    options = options or Options()
    content = collect(runs, options, progress)
    progress('writing the page')
    page = render(content)
    write_file(output, lambda file: file.write(page.encode()))
    return content


def collect(runs: Sequence[Run], options: Options, progress: Progress) -> Dict[str, Any]:
    """Everything that the page shows, as JSON can hold it."""
    names = _distinct([run.name for run in runs])
    content = dict(
        title=' · '.join(names), version=mmrla.__version__, score=options.score,
        created=datetime.now().strftime('%Y-%m-%d %H:%M'),
        runs=[dict(name=name, facts=run.facts, curves=run.curves)
              for name, run in zip(names, runs, strict=True)],
        differences=config_differences([run.config for run in runs]),
        configs=[run.text for run in runs])
    progress('evaluating the detections')
    content.update(_detections(runs, options, progress))
    if options.cost:
        progress('counting and timing the backbones')
        content['cost'] = [cost.measure(run) for run in runs]
    return content


def _distinct(names: List[str]) -> List[str]:
    """The names, with numbers where two are the same."""
    return [name if names.count(name) == 1 else f'{name} ({number})'
            for number, name in enumerate(names, 1)]


def _detections(runs: Sequence[Run], options: Options, progress: Progress) -> Dict[str, Any]:
    """The part of the page that needs detections; empty if no run has any."""
    found = [results.read_predictions(run) for run in runs]
    truths = [results.read_truth(run) if items is not None else None
              for run, items in zip(runs, found, strict=True)]
    truth = next((truth for truth in truths if truth is not None), None)
    if truth is None:
        return {}
    same = [other is not None and _same_data(truth, other) for other in truths]
    evaluations = [results.evaluate(other, items) if other is not None else None
                   for other, items in zip(truths, found, strict=True)]
    progress('matching detections with the truth')
    matches = [matching.match_all(truth, items, options.score) if is_same else None
               for items, is_same in zip(found, same, strict=True)]
    return dict(
        classes=list(truth.classes),
        counts=_object_counts(truth),
        data=dict(path=str(truth.path), images=len(truth.coco.dataset['images']),
                  objects=len(truth.coco.dataset['annotations'])),
        notes=[_note(run, items, is_same)
               for run, items, is_same in zip(runs, found, same, strict=True)],
        figures=dict(names=results.FIGURES,
                     values=[_figures(evaluation) for evaluation in evaluations]),
        per_class=[_per_class(evaluation) if is_same else None
                   for evaluation, is_same in zip(evaluations, same, strict=True)],
        precision=[_precision(evaluation) if is_same else None
                   for evaluation, is_same in zip(evaluations, same, strict=True)],
        confusion=[None if match is None else matching.confusion_matrix(truth, match)
                   for match in matches],
        errors=dict(kinds=matching.KINDS, outcomes=matching.OUTCOMES, sizes=matching.SIZES,
                    runs=[None if match is None else matching.error_counts(match)
                          for match in matches],
                    location=[None if match is None else matching.location_errors(match)
                              for match in matches]),
        **_images(runs, truth, matches, options, progress))


def _same_data(first: results.Truth, second: results.Truth) -> bool:
    return first.classes == second.classes and set(first.coco.imgs) == set(second.coco.imgs)


def _note(run: Run, found: Optional[list], is_same: bool) -> str:
    if found is None:
        return f'no detections are kept in {results.predictions_file(run)}'
    return '' if is_same else 'validated on other data than the first run'


def _object_counts(truth: results.Truth) -> List[int]:
    counts = {key: 0 for key in truth.category_ids}
    for annotation in truth.coco.dataset['annotations']:
        if annotation['category_id'] in counts:
            counts[annotation['category_id']] += 1
    return [counts[key] for key in truth.category_ids]


def _figures(evaluation: Optional[results.Evaluation]) -> Optional[Dict[str, list]]:
    if evaluation is None:
        return None
    return {kind: [round(value, 4) for value in values]
            for kind, values in evaluation.figures.items()}


def _per_class(evaluation: results.Evaluation) -> Dict[str, list]:
    return {kind: [None if math.isnan(value) else round(float(value), 4) for value in values]
            for kind, values in evaluation.per_class.items()}


def _precision(evaluation: results.Evaluation) -> Dict[str, list]:
    """By kind, by IoU: for all classes together and for each, precision in thousandths."""
    result = {}
    for kind, values in evaluation.precision.items():
        known = values[0].max(0) > -1
        mean = values[:, :, known].mean(-1, keepdims=True) if known.any() else (
            np.full((*values.shape[:2], 1), -1.0))
        table = np.concatenate([mean, values], -1)
        result[kind] = np.moveaxis(np.where(table < 0, -1, table * 1000).round().astype(int),
                                   -1, 1).tolist()
    return result


def _images(runs: Sequence[Run], truth: results.Truth, matches: list, options: Options,
            progress: Progress) -> Dict[str, Any]:
    progress('drawing images')
    first = next(match for match in matches if match is not None)
    ids = pictures.choose({key: match.badness for key, match in first.items()}, options.images)
    drawn = [pictures.picture(truth, key, matches) for key in ids]
    content = dict(images=[item for item in drawn if item is not None])
    if options.inside:
        progress('looking at the hidden state')
        places = np.linspace(0, len(ids) - 1, options.inside).round().astype(int)
        paths = [truth.images / truth.coco.imgs[ids[place]]['file_name']
                 for place in sorted(set(places.tolist()))]
        content['inside'] = _inside(runs, [path for path in paths if path.is_file()])
    return content


def _inside(runs: Sequence[Run], paths: List[Path]) -> List[Dict[str, Any]]:
    """The hidden state of the first run that has one."""
    from mmrla.inference import Predictor  # imports mmdet
    for run in runs:
        backbone = (run.config.get('model') or {}).get('backbone') or {}
        if run.checkpoint is None or not backbone.get('rla'):
            continue
        predictor = Predictor(str(run.checkpoint), device='cpu')
        looks = [inside.look_inside(predictor, path) for path in paths]
        return [dict(look, run=run.name) for look in looks if look is not None]
    return []


def flatten(value: Any, prefix: str = '') -> Dict[str, Any]:
    """A nested config as one level of dotted names."""
    items = (value.items() if isinstance(value, dict) else enumerate(value)
             if isinstance(value, (list, tuple)) else ())
    found: Dict[str, Any] = {}
    for key, item in items:
        found.update(flatten(item, f'{prefix}{key}.'))
    return found or ({prefix[:-1]: value} if prefix else {})


def config_differences(configs: Sequence[Config]) -> List[Dict[str, Any]]:
    """The settings that are not the same in all configs."""
    flat = [flatten(config.to_dict()) for config in configs]
    names = dict.fromkeys(name for values in flat for name in values)
    missing = object()
    rows = []
    for name in sorted(names):
        values = [values.get(name, missing) for values in flat]
        if name.split('.')[0] not in IGNORED and any(value != values[0] for value in values):
            rows.append(dict(name=name, values=['—' if value is missing else repr(value)
                                                for value in values]))
    return rows


def render(content: Dict[str, Any]) -> str:
    """The page, with its style, its script and its data inside."""
    folder = files(__package__)
    data = json.dumps(_finite(content), separators=(',', ':')).replace('</', '<\\/')
    page = (folder / 'page.html').read_text()
    for name, text in (('TITLE', html.escape(content['title'])),
                       ('STYLE', (folder / 'page.css').read_text()),
                       ('SCRIPT', (folder / 'page.js').read_text()), ('DATA', data)):
        page = page.replace(f'@@{name}@@', text)
    return page


def _finite(value: Any) -> Any:
    """The same, with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
