"""Detections matched with the truth, image by image: what is right, and what kind of wrong."""
from collections import Counter, defaultdict
from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np

from .results import Truth

# Of a detection, in the order in which they are drawn.
RIGHT, CLASS, LOCATION, BOTH, DUPLICATE, BACKGROUND = range(6)
KINDS = ('correct', 'wrong class', 'poor location', 'class and location', 'duplicate',
         'background')
# Of an object of the truth.
OUTCOMES = ('found', 'wrong class', 'poor location', 'missed')
SIZES = ('small', 'medium', 'large')
SIZE_LIMITS = (32**2, 96**2)
GOOD_IOU, SOME_IOU = 0.5, 0.1


class Boxes(NamedTuple):
    """The boxes of one image.

    Attributes:
        corners: Shape (n, 4): x1, y1, x2, y2.
        labels: Shape (n, ).
        scores: Shape (n, ); 1 for the truth.
        items: The annotations they are from.
    """
    corners: np.ndarray
    labels: np.ndarray
    scores: np.ndarray
    items: List[dict]


class Match(NamedTuple):
    """One image's detections beside its truth.

    Attributes:
        truth: The objects; crowds are left out.
        found: The detections from the threshold on, the best first.
        kinds: For each detection an index of ``KINDS``.
        outcomes: For each object an index of ``OUTCOMES``.
        partner: For each detection the object it is right about, else -1.
    """
    truth: Boxes
    found: Boxes
    kinds: np.ndarray
    outcomes: np.ndarray
    partner: np.ndarray

    @property
    def badness(self) -> float:
        """1 - F1: 0 if all is right, 1 if nothing is."""
        right = int((self.kinds == RIGHT).sum())
        total = len(self.kinds) + len(self.outcomes)
        return 1 - 2 * right / total if total else 0.0


def boxes_of(items: List[dict], labels: Dict[int, int]) -> Boxes:
    """The boxes of annotations whose categories are known."""
    items = [item for item in items if item['category_id'] in labels]
    corners = np.array([item['bbox'] for item in items], dtype=np.float64).reshape(-1, 4)
    corners[:, 2:] += corners[:, :2]
    return Boxes(corners, np.array([labels[item['category_id']] for item in items], dtype=int),
                 np.array([item.get('score', 1.0) for item in items]), items)


def iou_matrix(first: np.ndarray, second: np.ndarray, of_first: bool = False) -> np.ndarray:
    """The overlap of every box with every other, shape (len(first), len(second)).

    Args:
        first: Shape (n, 4): x1, y1, x2, y2.
        second: Shape (m, 4).
        of_first: The share of the first box instead of the intersection over union.
    """
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    inside = np.clip(high - low, 0, None).prod(-1)
    areas = [np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(-1) for boxes in (first, second)]
    union = areas[0][:, None] + (0 if of_first else areas[1][None] - inside)
    return inside / np.maximum(union, 1e-9)


def match_image(annotations: List[dict], detections: List[dict], labels: Dict[int, int],
                score: float) -> Match:
    """Match the detections of one image, the best first.

    Args:
        annotations: The truth.
        detections: All detections, with a score.
        labels: The label of each category id.
        score: Detections below it do not count.
    """
    detections = sorted((item for item in detections if item['score'] >= score),
                        key=lambda item: -item['score'])
    truth = boxes_of([item for item in annotations if not item.get('iscrowd')], labels)
    found = boxes_of(detections, labels)
    crowds = boxes_of([item for item in annotations if item.get('iscrowd')], labels)
    if len(crowds.items) and len(found.items):
        free = iou_matrix(found.corners, crowds.corners, of_first=True).max(1) < GOOD_IOU
        found = Boxes(found.corners[free], found.labels[free], found.scores[free],
                      [item for item, is_free in zip(found.items, free, strict=True) if is_free])
    kinds = np.full(len(found.items), BACKGROUND)
    partner = np.full(len(found.items), -1)
    outcomes = np.full(len(truth.items), OUTCOMES.index('missed'))
    if len(kinds) and len(outcomes):
        _match(truth, found, kinds, partner, outcomes)
    return Match(truth, found, kinds, outcomes, partner)


def _match(truth: Boxes, found: Boxes, kinds: np.ndarray, partner: np.ndarray,
           outcomes: np.ndarray) -> None:
    """Fill in what became of each detection and of each object."""
    overlap = iou_matrix(found.corners, truth.corners)
    same = found.labels[:, None] == truth.labels[None]
    taken = np.zeros(len(outcomes), dtype=bool)
    for number in range(len(kinds)):
        free = np.where(same[number] & ~taken, overlap[number], 0)
        if free.max() >= GOOD_IOU:
            kinds[number], partner[number] = RIGHT, free.argmax()
            taken[partner[number]] = True
    outcomes[taken] = OUTCOMES.index('found')
    for number in np.flatnonzero(kinds != RIGHT):
        kinds[number], about = _kind_of_error(overlap[number], same[number])
        if about is not None and outcomes[about] == OUTCOMES.index('missed'):
            outcomes[about] = OUTCOMES.index(
                'wrong class' if kinds[number] == CLASS else 'poor location')


def _kind_of_error(overlap: np.ndarray, same: np.ndarray) -> tuple:
    """What is wrong with a detection, and which object it is about."""
    ours, others = np.where(same, overlap, 0), np.where(same, 0, overlap)
    if ours.max() >= GOOD_IOU:
        return DUPLICATE, None
    if others.max() >= GOOD_IOU:
        return CLASS, int(others.argmax())
    if ours.max() >= SOME_IOU:
        return LOCATION, int(ours.argmax())
    if others.max() >= SOME_IOU:
        return BOTH, None
    return BACKGROUND, None


def match_all(truth: Truth, found: List[dict], score: float) -> Dict[int, Match]:
    """The matches of all images, by image id."""
    labels = {key: label for label, key in enumerate(truth.category_ids)}
    by_image: Dict[int, List[dict]] = defaultdict(list)
    for item in found:
        if item['score'] >= score:
            by_image[item['image_id']].append(item)
    annotations: Dict[int, List[dict]] = defaultdict(list)
    for item in truth.coco.dataset['annotations']:
        annotations[item['image_id']].append(item)
    return {image['id']: match_image(annotations[image['id']], by_image[image['id']], labels,
                                     score)
            for image in truth.coco.dataset['images']}


def size_of(item: dict) -> int:
    """0, 1, 2: small, medium, large, by COCO's limits."""
    area = item.get('area') or item['bbox'][2] * item['bbox'][3]
    return int(np.searchsorted(SIZE_LIMITS, area, side='right'))


def error_counts(matches: Dict[int, Match]) -> Dict[str, Any]:
    """Detections by kind, and objects by size and outcome."""
    kinds: Counter = Counter()
    sizes = np.zeros((len(SIZES), len(OUTCOMES)), dtype=int)
    for match in matches.values():
        kinds.update(match.kinds.tolist())
        for item, outcome in zip(match.truth.items, match.outcomes, strict=True):
            sizes[size_of(item), outcome] += 1
    return dict(kinds=[kinds[index] for index in range(len(KINDS))], sizes=sizes.tolist())


def location_errors(matches: Dict[int, Match], bins: int = 41) -> Dict[str, Any]:
    """How correct boxes are shifted and scaled against the truth, as histograms.

    Shifts are shares of the object's width and height. Sizes are ratios.
    """
    pairs = [(match.found.corners[number], match.truth.corners[partner])
             for match in matches.values() for number, partner in enumerate(match.partner)
             if partner >= 0]
    if not pairs:
        return {}
    found, truth = (np.array(boxes) for boxes in zip(*pairs, strict=True))
    size = np.maximum(truth[:, 2:] - truth[:, :2], 1e-6)
    shift = ((found[:, :2] + found[:, 2:]) - (truth[:, :2] + truth[:, 2:])) / 2 / size
    ratio = np.maximum(found[:, 2:] - found[:, :2], 1e-6) / size
    edges = np.linspace(-0.5, 0.5, bins + 1)
    values = {'shift to the right': shift[:, 0], 'shift downwards': shift[:, 1],
              'excess width': ratio[:, 0] - 1, 'excess height': ratio[:, 1] - 1}
    return {name: dict(median=float(np.median(value)),
                       share=(np.histogram(np.clip(value, -0.5, 0.5), edges)[0]
                              / len(value)).tolist())
            for name, value in values.items()}


def confusion_matrix(truth: Truth, matches: Dict[int, Match]) -> Optional[List[List[int]]]:
    """Objects by their class and the class they were found as, by supervision.

    The last row has detections where there is no object, the last column objects that were
    not found. None if supervision is not installed.
    """
    try:
        from supervision.metrics.detection import ConfusionMatrix
    except ImportError:
        return None
    predictions = [np.column_stack([m.found.corners, m.found.labels, m.found.scores])
                   for m in matches.values()]
    targets = [np.column_stack([m.truth.corners, m.truth.labels]) for m in matches.values()]
    matrix = ConfusionMatrix.from_tensors(
        predictions, targets, list(truth.classes), conf_threshold=0.0, iou_threshold=GOOD_IOU)
    return matrix.matrix.astype(int).tolist()
