"""The training recipes of the paper's text (sections 3.2, 4.1 to 4.3, appendix B.1 to B.3).

A value of None means that the paper does not state it. ``tests/configs/test_recipes.py``
compares the configs with this table.
"""
from dataclasses import dataclass
from math import cos, pi
from typing import Optional, Tuple


@dataclass(frozen=True)
class Recipe:
    """The recipe of a group of networks.

    Attributes:
        source: The sections that state the recipe.
        epochs: Number of epochs.
        batch: Images per step, on all GPUs together.
        gpus: Number of GPUs.
        lr: The initial learning rate.
        drops: The epochs after which the learning rate is divided by 10.
        decay: The factor of the learning rate after every epoch.
        cosine: Whether the learning rate follows a cosine to 0.
        warm_up: Number of epochs in which the learning rate rises.
        momentum: Momentum of SGD.
        nesterov: Whether SGD uses Nesterov momentum.
        weight_decay: The l2 weight decay.
        label_smoothing: Epsilon, 0 without.
        mixup: Alpha of the Beta distribution, 0 without.
        split: Numbers of training and validation images, if the paper splits a data set.
        padding: Zero pixels on each side before the crop.
        crop: The side of the training crop, in pixels.
        flip: Whether a crop is flipped horizontally at random.
        scale_augmentation: Whether the crop is taken from an image of random scale.
        test_edge: The shorter side of a test image before its centre crop.
        test_crop: The side of the centre crop; None if the image is not cropped.
        detection_edge: The shorter side of a detector's image.
        best_checkpoint: Whether the checkpoint with the best validation is reported.
    """
    source: str
    epochs: int
    batch: int
    gpus: int
    lr: float
    momentum: float
    weight_decay: float
    drops: Tuple[int, ...] = ()
    decay: Optional[float] = None
    cosine: bool = False
    warm_up: int = 0
    nesterov: bool = False
    label_smoothing: float = 0
    mixup: float = 0
    split: Optional[Tuple[int, int]] = None
    padding: int = 0
    crop: Optional[int] = None
    flip: bool = True
    scale_augmentation: bool = False
    test_edge: Optional[int] = None
    test_crop: Optional[int] = None
    detection_edge: Optional[int] = None
    best_checkpoint: bool = False


CIFAR = Recipe(
    source='4.1, B.1; 3.2 for the DenseNets', epochs=300, batch=128, gpus=1, lr=0.1,
    drops=(150, 225), momentum=0.9, nesterov=True, weight_decay=1e-4, split=(45000, 5000),
    padding=4, crop=32, best_checkpoint=True)

IMAGENET = Recipe(
    source='4.2, B.2.1', epochs=120, batch=256, gpus=4, lr=0.1, drops=(30, 60, 90), momentum=0.9,
    weight_decay=1e-4, crop=224, scale_augmentation=True, test_edge=256, test_crop=224)

MOBILENET = Recipe(
    source='4.2, B.2.1', epochs=400, batch=96, gpus=2, lr=0.045, decay=0.98, momentum=0.9,
    weight_decay=4e-5, crop=224, scale_augmentation=True, test_edge=256, test_crop=224)

# B.2.2 names what it changes; momentum, weight decay, batch and crops are those of B.2.1.
REFINED = Recipe(
    source='B.2.2', epochs=200, batch=256, gpus=4, lr=0.1, cosine=True, warm_up=5, momentum=0.9,
    weight_decay=1e-4, label_smoothing=0.1, mixup=0.2, crop=224, scale_augmentation=True,
    test_edge=256, test_crop=224)

DETECTION = Recipe(
    source='4.3, B.3', epochs=12, batch=8, gpus=4, lr=0.01, drops=(8, 11), momentum=0.9,
    weight_decay=1e-4, detection_edge=800)

RECIPES = dict(cifar=CIFAR, imagenet=IMAGENET, mobilenet=MOBILENET, refined=REFINED,
               detection=DETECTION)

# Settings of the configs that the paper does not state.
OURS = dict(
    warm_up_of_detectors='500 iterations from 0.001 of the learning rate, as in MMDetection',
    warm_up_of_refined='from 0.01 of the learning rate; the cosine ends at 0 after epoch 200',
    crop_of_imagenet='8% to 100% of the area, aspect 3/4 to 4/3 (mmpretrain, torchvision)',
    cifar_split='the last 5,000 images of the training files validate',
    cifar_padding='the padding is 0 before the normalisation',
    decay_of_norms='weight decay acts on all parameters',
)


def learning_rate(recipe: Recipe, epoch: float) -> float:
    """Return the learning rate after ``epoch`` epochs according to the paper's text.

    The warm-up is not included, because the paper does not state its start.
    """
    if recipe.cosine:
        share = (epoch - recipe.warm_up) / (recipe.epochs - recipe.warm_up)
        return recipe.lr * (1 + cos(pi * share)) / 2
    if recipe.decay:
        return recipe.lr * recipe.decay**int(epoch)
    return recipe.lr * 0.1**sum(epoch >= drop for drop in recipe.drops)
