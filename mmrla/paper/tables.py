"""The figures that the paper prints; no other file of this project repeats them.

Each row names the config that builds its network, or None if the paper quotes
another paper's network. The figures are given as printed, with ``-`` for an empty
cell. ``mmrla.paper.comparison`` compares them with counts of the networks.
"""
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Sequence, Tuple


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        name: The printed name; a "+" row extends the plain network above it.
        config: Path below ``configs/`` without the suffix; None if quoted.
        figures: The printed figures, one per column, separated by spaces.
        base: The config that a difference ("+0.07M") refers to.
    """
    name: str
    config: Optional[str]
    figures: str
    base: Optional[str] = None


@dataclass(frozen=True)
class Table:
    """A table of the paper.

    Attributes:
        key: The name of the table for ``--tables``.
        title: The number of the table in the paper and its content.
        columns: The columns of figures.
        rows: The rows.
        counted: The columns that are compared with counts.
        unit: The value of "M" in ``Params``: 2**20 or 10**6.
        tolerance: The difference in M that is allowed between a count and the
            printed figure; with 0 all printed digits must agree.
        with_statistics: Whether the running statistics of norms are included, as
            in the total that Keras prints.
        measured_on: The images of the printed accuracies: ``'validation'``
            (ImageNet, COCO) or ``'test'`` (CIFAR, where the validation images
            select the checkpoint).
        notes: Reasons for differences, by row name and column.
    """
    key: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Row]
    counted: Sequence[str] = ('Params', 'FLOPs')
    unit: int = 2**20
    tolerance: float = 0
    with_statistics: bool = False
    measured_on: str = 'validation'
    notes: Dict[Tuple[str, str], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.figures.split()) != len(self.columns):
                raise ValueError(f'table {self.key}, row {row.name}: {row.figures!r} must have '
                                 f'{len(self.columns)} figures, one per column')

    @staticmethod
    def base_of(row: Row) -> Optional[str]:
        """Return the config of the same network without RLA; None for a row without RLA."""
        if row.base or row.config is None or 'rla_' not in row.config:
            return row.base
        return row.config.replace('rla_', '', 1)

    def printed(self, row: Row) -> Dict[str, str]:
        """Return the figures of a row by column, without empty cells."""
        pairs = zip(self.columns, row.figures.split(), strict=True)
        return {column: figure for column, figure in pairs if figure != '-'}


SHARED = Table(
    'shared', 'Table 1: DenseNet and its parameter sharing variants on CIFAR-10',
    ('Params', 'Error'), (
        Row('DenseNet', 'ablation/densenet100_cifar10', '0.80M 5.80±0.33'),
        Row('- Shared-Lag', 'ablation/densenet100_shared_lag_cifar10', '0.60M 6.22'),
        Row('- Shared-Ordinal', 'ablation/densenet100_shared_ordinal_cifar10', '0.60M 6.29')),
    unit=10**6, tolerance=0.02, with_statistics=True, measured_on='test')

_R164 = ('all digits of the RLA rows with the same base network agree, and they imply 1.70; '
         'convolution biases in the plain networks alone would give 1.716 and explain all of '
         'these cells except "no exchange"')
_ROUNDED = 'the paper prints the difference of two rounded counts'

# The FLOPs of the CIFAR tables are quoted only. They are about five times the number
# of parameters, not multiply-adds: ResNet-164 has 0.25 G multiply-adds.
CIFAR = Table(
    'cifar', 'Table 2: classification error on CIFAR-10 (C-10) and CIFAR-100 (C-100)',
    ('Params', 'FLOPs', 'Original', 'Re-impl.', 'RLA-Net', 'ΔParams', 'ΔFLOPs'), (
        Row('C-10 ResNet-110', 'pretrain/r110_cifar10', '1.73M 8.67M 6.37 6.35 - - -'),
        Row('C-10 110 +RLA', 'pretrain/rla_r110_cifar10', '- - - - 5.88 +0.07M +0.37M',
            'pretrain/r110_cifar10'),
        Row('C-10 ResNet-164', 'pretrain/r164_cifar10', '1.72M 8.55M 5.46 5.72 - - -'),
        Row('C-10 164 +RLA', 'pretrain/rla_r164_cifar10', '- - - - 4.95 +0.02M +0.19M',
            'pretrain/r164_cifar10'),
        Row('C-10 Xception', 'pretrain/xception_cifar10', '2.70M 13.54M - 6.03 - - -'),
        Row('C-10 Xception +RLA', 'pretrain/rla_xception_cifar10', '- - - - 5.78 +0.07M +0.33M',
            'pretrain/xception_cifar10'),
        Row('C-100 ResNet-110', 'pretrain/r110_cifar100', '1.74M 8.69M 26.88 28.51 - - -'),
        Row('C-100 110 +RLA', 'pretrain/rla_r110_cifar100', '- - - - 27.44 +0.07M +0.38M',
            'pretrain/r110_cifar100'),
        Row('C-100 ResNet-164', 'pretrain/r164_cifar100', '1.74M 8.67M 24.33 25.22 - - -'),
        Row('C-100 164 +RLA', 'pretrain/rla_r164_cifar100', '- - - - 23.78 +0.02M +0.19M',
            'pretrain/r164_cifar100'),
        Row('C-100 Xception', 'pretrain/xception_cifar100', '2.75M 13.77M - 24.31 - - -'),
        Row('C-100 Xception +RLA', 'pretrain/rla_xception_cifar100',
            '- - - - 24.00 +0.06M +0.33M', 'pretrain/xception_cifar100')),
    counted=('Params', 'ΔParams'), unit=10**6, tolerance=0.02, measured_on='test',
    notes={
        ('C-10 ResNet-164', 'Params'): _R164, ('C-10 164 +RLA', 'ΔParams'): _R164,
        ('C-100 ResNet-164', 'Params'): _R164, ('C-100 164 +RLA', 'ΔParams'): _R164,
        ('C-100 Xception +RLA', 'ΔParams'): _ROUNDED})

_SHORTENED = ('the printed counts are those of the network without the stem of three convolutions '
              'and the average-pooled shortcuts of ResNet-D')
_SE_MOBILE = ('no squeeze ratio gives 3.51: the ratios 2, 3, 4, 8 and 16 give 3.56, 3.49, 3.45, '
              '3.40 and 3.37; the config uses 16, the ratio of the SE-ResNets')

IMAGENET = Table(
    'imagenet', 'Table 3: single-crop error on ImageNet, 224 x 224',
    ('Params', 'FLOPs', 'Top-1 err.', 'Top-5 err.', '↑Acc1'), (
        Row('ResNet-50', 'pretrain/r50_imagenet', '24.37M 3.83G 24.70 7.80 -'),
        Row('+RLA', 'pretrain/rla_r50_imagenet', '24.67M 4.17G 22.83 6.58 1.87'),
        Row('+SE', 'pretrain/se_r50_imagenet', '26.77M 3.84G 23.29 6.62 -'),
        Row('+CBAM', 'pretrain/cbam_r50_imagenet', '26.77M 3.84G 22.66 6.31 -'),
        Row('+ECA', 'pretrain/eca_r50_imagenet', '24.37M 3.83G 22.52 6.32 -'),
        Row('+ECA+RLA', 'pretrain/rla_eca_r50_imagenet', '24.67M 4.18G 22.15 6.11 0.37'),
        Row('ResNet-101', 'pretrain/r101_imagenet', '42.49M 7.30G 23.60 7.10 -'),
        Row('101 +RLA', 'pretrain/rla_r101_imagenet', '42.92M 7.79G 21.48 5.80 2.12'),
        Row('101 +SE', 'pretrain/se_r101_imagenet', '47.01M 7.31G 22.38 6.07 -'),
        Row('101 +CBAM', 'pretrain/cbam_r101_imagenet', '47.01M 7.31G 21.51 5.67 -'),
        Row('101 +ECA', 'pretrain/eca_r101_imagenet', '42.49M 7.30G 21.35 5.66 -'),
        Row('101 +ECA+RLA', 'pretrain/rla_eca_r101_imagenet', '42.92M 7.80G 21.13 5.61 0.22'),
        Row('ResNet-152', 'pretrain/r152_imagenet', '57.40M 10.77G 23.00 6.70 -'),
        Row('152 +RLA', 'pretrain/rla_r152_imagenet', '57.96M 11.47G 21.22 5.65 1.78'),
        Row('152 +SE', 'pretrain/se_r152_imagenet', '63.68M 10.78G 21.57 5.73 -'),
        Row('152 +ECA', 'pretrain/eca_r152_imagenet', '57.41M 10.78G 21.08 5.45 -'),
        Row('152 +ECA+RLA', 'pretrain/rla_eca_r152_imagenet', '57.96M 11.48G 20.66 5.49 0.42'),
        Row('MobileNetV2', 'pretrain/mbv2_imagenet', '3.34M 299.6M 28.36 9.80 -'),
        Row('MobileNetV2 +RLA', 'pretrain/rla_mbv2_imagenet', '3.46M 351.8M 27.68 9.18 0.68'),
        Row('MobileNetV2 +SE', 'pretrain/se_mbv2_imagenet', '3.51M 300.3M 27.58 9.33 -'),
        Row('MobileNetV2 +ECA', 'pretrain/eca_mbv2_imagenet', '3.34M 300.1M 27.44 9.19 -'),
        Row('MobileNetV2 +ECA+RLA', 'pretrain/rla_eca_mbv2_imagenet',
            '3.46M 352.4M 27.07 8.89 0.37'),
        Row('DenseNet-161 (k=48)', None, '27.35M 7.34G 22.35 6.20 -'),
        Row('DenseNet-264 (k=32)', None, '31.79M 5.52G 22.15 6.22 -'),
        Row('ResNet-200', None, '74.45M 14.10G 21.80 6.00 -'),
        Row('DPN-68', None, '12.80M 2.50G 23.60 6.90 -'),
        Row('DPN-92', None, '38.00M 6.50G 20.70 5.40 -'),
        Row('DPN-98', None, '61.60M 11.70G 20.20 5.20 -'),
        Row('AOGNet-12M', None, '11.90M 2.40G 22.30 6.10 -'),
        Row('AOGNet-40M', None, '40.30M 8.90G 19.80 4.90 -'),
        Row('HCGNet-B', None, '12.90M 2.00G 21.50 5.90 -'),
        Row('HCGNet-C', None, '42.20M 7.10G 19.50 4.80 -'),
        Row('RLA-ResNet-50 †', 'pretrain/rla_r50d_imagenet', '24.67M 4.17G 20.25 5.12 -'),
        Row('RLA-ECANet-50 †', 'pretrain/rla_eca_r50d_imagenet', '24.67M 4.18G 19.31 4.71 -')),
    notes={
        ('152 +ECA', 'Params'): 'ECA adds 256 parameters to 60,192,808; the sum rounds to 57.40, '
                                'and 57.41 needs 442 parameters more',
        ('MobileNetV2 +SE', 'Params'): _SE_MOBILE,
        ('MobileNetV2 +SE', 'FLOPs'): _SE_MOBILE,
        ('RLA-ResNet-50 †', 'Params'): _SHORTENED, ('RLA-ResNet-50 †', 'FLOPs'): _SHORTENED,
        ('RLA-ECANet-50 †', 'Params'): _SHORTENED, ('RLA-ECANet-50 †', 'FLOPs'): _SHORTENED})


def _detection_rows() -> List[Row]:
    """Return the rows of table 4, four groups of five."""
    figures = {
        ('faster_rcnn', 50): ('36.4 58.2 39.2 21.8 40.0 46.2 -',
                              '38.8 59.6 42.0 22.5 42.9 49.5 2.4',
                              '37.7 60.1 40.9 22.9 41.9 48.2 -', '38.0 60.6 40.9 23.4 42.1 48.0 -',
                              '39.8 61.2 43.2 23.9 43.7 50.8 1.8'),
        ('faster_rcnn', 101): ('38.7 60.6 41.9 22.7 43.2 50.4 -',
                               '41.2 61.8 44.9 23.7 45.7 53.8 2.5',
                               '39.6 62.0 43.1 23.7 44.0 51.4 -', '40.3 62.9 44.0 24.5 44.7 51.3 -',
                               '42.1 63.3 46.1 24.9 46.4 54.8 1.8'),
        ('retinanet', 50): ('35.6 55.5 38.2 20.0 39.6 46.8 -', '37.9 57.0 40.8 22.0 41.7 49.2 2.3',
                            '37.1 57.2 39.9 21.2 40.7 49.3 -', '37.3 57.7 39.6 21.9 41.3 48.9 -',
                            '38.9 58.7 41.7 23.9 42.7 49.7 1.6'),
        ('retinanet', 101): ('37.7 57.5 40.4 21.1 42.2 49.5 -', '40.3 59.8 43.5 24.2 43.8 52.7 2.6',
                             '38.7 59.1 41.6 22.1 43.1 50.9 -', '39.1 59.9 41.8 22.8 43.4 50.6 -',
                             '41.5 61.6 44.4 25.3 45.7 53.8 2.4'),
    }
    names = dict(faster_rcnn='Faster R-CNN', retinanet='RetinaNet')
    forms = (('', ''), ('rla_', ' +RLA'), ('se_', ' +SE'), ('eca_', ' +ECA'),
             ('rla_eca_', ' +ECA+RLA'))
    return [Row(f'{names[detector]} ResNet-{depth}{module}',
                f'{detector}_{form}r{depth}_fpn_1x', figure)
            for (detector, depth), group in figures.items()
            for (form, module), figure in zip(forms, group, strict=True)]


DETECTION = Table(
    'detection', 'Table 4: object detection on COCO val2017',
    ('AP', 'AP50', 'AP75', 'APS', 'APM', 'APL', '↑AP'), tuple(_detection_rows()))

MASK = Table(
    'mask', 'Table 5: Mask R-CNN on COCO val2017',
    ('APbb', 'APbb50', 'APbb75', 'APm', 'APm50', 'APm75', '↑APbb', '↑APm'), (
        Row('ResNet-50', 'mask_rcnn_r50_fpn_1x', '37.2 58.9 40.3 34.1 55.5 36.2 - -'),
        Row('+RLA', 'mask_rcnn_rla_r50_fpn_1x', '39.5 60.1 43.3 35.6 56.9 38.0 2.3 1.5'),
        Row('+SE', 'mask_rcnn_se_r50_fpn_1x', '38.7 60.9 42.1 35.4 57.4 37.8 - -'),
        Row('+1 NL', 'mask_rcnn_nl_r50_fpn_1x', '38.0 59.8 41.0 34.7 56.7 36.6 - -'),
        Row('+GC Block', 'mask_rcnn_gc_r50_fpn_1x', '39.4 61.6 42.4 35.7 58.4 37.6 - -'),
        Row('+ECA', 'mask_rcnn_eca_r50_fpn_1x', '39.0 61.3 42.1 35.6 57.1 37.7 - -'),
        Row('+ECA+RLA', 'mask_rcnn_rla_eca_r50_fpn_1x', '40.6 61.8 44.0 36.5 58.4 38.8 1.6 0.9'),
        Row('ResNet-101', 'mask_rcnn_r101_fpn_1x', '39.4 60.9 43.3 35.9 57.7 38.4 - -'),
        Row('101 +RLA', 'mask_rcnn_rla_r101_fpn_1x', '41.8 62.3 46.2 37.3 59.2 40.1 2.4 1.4'),
        Row('101 +SE', 'mask_rcnn_se_r101_fpn_1x', '40.7 62.5 44.3 36.8 59.3 39.2 - -'),
        Row('101 +ECA', 'mask_rcnn_eca_r101_fpn_1x', '41.3 63.1 44.8 37.4 59.9 39.8 - -'),
        Row('101 +ECA+RLA', 'mask_rcnn_rla_eca_r101_fpn_1x',
            '42.9 63.6 46.9 38.1 60.5 40.8 1.6 0.7')))

ABLATION = Table(
    'ablation', 'Table 6: ablations on ImageNet, ResNet-50',
    ('Params', 'FLOPs', 'Top-1 err.', 'Top-5 err.'), (
        Row('ResNet-50', 'pretrain/r50_imagenet', '24.37M 3.83G 24.70 7.80'),
        Row('(a) channel +32', 'ablation/r50_channel32_imagenet', '25.55M 4.24G 23.54 6.72'),
        Row('(b) unshared', 'ablation/rla_r50_unshared_imagenet', '25.12M 4.17G 22.93 6.61'),
        Row('(c) no exchange', 'ablation/rla_r50_no_exchange_imagenet',
            '24.56M 4.11G 23.42 6.90'),
        Row('(d) ConvLSTM', 'ablation/rla_r50_lstm_imagenet', '24.92M 5.00G 22.92 6.53'),
        Row('(e) PostAct.', 'ablation/rla_r50_post_act_imagenet', '24.67M 4.17G 23.11 6.65'),
        Row('Proposed RLA-v1', 'pretrain/rla_r50_imagenet', '24.67M 4.17G 22.83 6.58'),
        Row('(f) RLA-v2', 'ablation/rla_r50_v2_imagenet', '24.67M 4.17G 23.24 6.61'),
        Row('(g) RLA-v3', 'ablation/rla_r50_v3_imagenet', '24.67M 4.17G 22.95 6.54'),
        Row('(h) RLA-v4', 'ablation/rla_r50_v4_imagenet', '24.67M 4.17G 23.36 6.72'),
        Row('(i) RLA-v5', 'ablation/rla_r50_v5_imagenet', '24.67M 4.17G 23.30 6.60'),
        Row('(j) RLA-v6', 'ablation/rla_r50_v6_imagenet', '24.67M 4.17G 23.50 6.82')))

CIFAR_ABLATION = Table(
    'cifar_ablation', 'Appendix B.4: ablations on CIFAR-10, ResNet-164, k = 12',
    ('Params', 'Error'), (
        Row('ResNet-164', 'pretrain/r164_cifar10', '1.72M 5.72±0.02'),
        Row('- channel +12', 'ablation/r164_channel12_cifar10', '1.93M 5.27'),
        Row('- unshared', 'ablation/rla_r164_unshared_cifar10', '1.90M 5.17'),
        Row('- no exchange', 'ablation/rla_r164_no_exchange_cifar10', '1.72M 5.51'),
        Row('- ConvLSTM', 'ablation/rla_r164_lstm_cifar10', '1.77M 5.36'),
        Row('- PostAct.', 'ablation/rla_r164_post_act_cifar10', '1.74M 5.39'),
        Row('- DenseNet (DPN)', 'ablation/dpn_r164_cifar10', '2.13M 5.99'),
        Row('- RLA-v1', 'pretrain/rla_r164_cifar10', '1.74M 4.95'),
        Row('- RLA-v2', 'ablation/rla_r164_v2_cifar10', '1.74M 5.53'),
        Row('- RLA-v3', 'ablation/rla_r164_v3_cifar10', '1.74M 5.13'),
        Row('- RLA-v4', 'ablation/rla_r164_v4_cifar10', '1.74M 5.35'),
        Row('- RLA-v5', 'ablation/rla_r164_v5_cifar10', '1.74M 5.00'),
        Row('- RLA-v6', 'ablation/rla_r164_v6_cifar10', '1.74M 5.62')),
    unit=10**6, tolerance=0.02, measured_on='test',
    notes={('ResNet-164', 'Params'): _R164, ('- no exchange', 'Params'): _R164})

CHANNELS = Table(
    'channels', 'Appendix B.4: RLA channels k on CIFAR-10, ResNet-164',
    ('Params', 'Error'), (
        Row('RLA-v1 (k=8)', 'ablation/rla_r164_k8_cifar10', '1.73M 4.98'),
        Row('RLA-v1 (k=12)', 'pretrain/rla_r164_cifar10', '1.74M 4.95'),
        Row('RLA-v1 (k=16)', 'ablation/rla_r164_k16_cifar10', '1.75M 5.28'),
        Row('RLA-v1 (k=24)', 'ablation/rla_r164_k24_cifar10', '1.78M 5.14')),
    unit=10**6, tolerance=0.02, measured_on='test')

TIME = Table(
    'time', 'Appendix B.4: time on the authors\' GPUs, ResNet-50',
    ('s/epoch', 'ms/image'), (
        Row('ResNet-50', 'pretrain/r50_imagenet', '961 1.16'),
        Row('+SE', 'pretrain/se_r50_imagenet', '1171 1.17'),
        Row('+ECA', 'pretrain/eca_r50_imagenet', '1161 1.17'),
        Row('+RLA', 'pretrain/rla_r50_imagenet', '1211 1.20')))

UNSHARED_CIFAR = Table(
    'unshared_cifar', 'Appendix B.4: shared and unshared RLA on CIFAR-10',
    ('Params', 'FLOPs', 'Top-1 acc.', 'Top-5 acc.'), (
        Row('RLA-ResNet-164', 'pretrain/rla_r164_cifar10', '1.74M 8.74M 95.05 -'),
        Row('- Unshared variant', 'ablation/rla_r164_unshared_cifar10', '1.90M 8.74M 94.83 -')),
    counted=('Params',), unit=10**6, tolerance=0.02, measured_on='test')

UNSHARED_IMAGENET = Table(
    'unshared_imagenet', 'Appendix B.4: shared and unshared RLA on ImageNet',
    ('Params', 'FLOPs', 'Top-1 acc.', 'Top-5 acc.'), (
        Row('RLA-ResNet-50', 'pretrain/rla_r50_imagenet', '24.67M 4.17G 77.17 93.42'),
        Row('- Unshared variant', 'ablation/rla_r50_unshared_imagenet',
            '25.12M 4.17G 77.07 93.39'),
        Row('RLA-ResNet-101', 'pretrain/rla_r101_imagenet', '42.92M 7.79G 78.52 94.20'),
        Row('- Unshared variant, 101', 'ablation/rla_r101_unshared_imagenet',
            '44.05M 7.79G 78.24 93.97')))

TABLES = {table.key: table for table in (
    SHARED, CIFAR, IMAGENET, DETECTION, MASK, ABLATION, CIFAR_ABLATION, CHANNELS, TIME,
    UNSHARED_CIFAR, UNSHARED_IMAGENET)}

# Additional time of a module in % of the plain ResNet, as the paper's text states it:
# training and evaluation of ResNet-50 (appendix B.4), training of ResNet-101 (section 4.2).
TIME_PERCENTAGES = {
    '+SE': dict(train=22, evaluation=0.2, train_101=15),
    '+ECA': dict(train=21, evaluation=0.9, train_101=15),
    '+RLA': dict(train=26, evaluation=2.8, train_101=19),
}

# Appendix A.2: R squared of the exponential fits of figure 2, by dense block.
FIGURE_2_R_SQUARED = dict(lag=(0.95, 0.86, 0.90), ordinal=(0.77, 0.91, 0.87))
