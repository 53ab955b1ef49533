"""Classification data in class folders."""
import cv2
import numpy as np
import pytest
import torch
from mmpretrain.structures import DataSample

from mmrla.datasets import CheckLabelsHook, ClassFolders, LoadNamedImage, make_class_folders
from mmrla.datasets.errors import DataError


@pytest.fixture
def folder(tmp_path):
    return make_class_folders(tmp_path / 'shapes', train=3, val=2)


def test_the_images_have_the_labels_of_their_folders(folder):
    data = ClassFolders(str(folder / 'train'), pipeline=[])
    assert len(data) == 18
    assert data.metainfo['classes'] == ('cross', 'disc', 'ring', 'square', 'star', 'triangle')
    assert all(f'/{data.metainfo["classes"][item["gt_label"]]}/' in item['img_path']
               for item in map(data.get_data_info, range(18)))


def test_training_and_validation_images_differ(folder):
    images = [{path.read_bytes() for path in (folder / split).rglob('*.png')}
              for split in ('train', 'val')]
    assert [len(group) for group in images] == [18, 12]
    assert not images[0] & images[1]


def test_a_wrong_class_folder_is_named(folder):
    (folder / 'train/hexagon').mkdir()
    with pytest.raises(DataError, match='train/hexagon is not a class folder.*disc'):
        ClassFolders(str(folder / 'train'), classes=('cross', 'disc', 'ring', 'square', 'star',
                                                     'triangle'))


def test_a_missing_class_folder_is_named(folder):
    with pytest.raises(DataError, match='train/oval is missing'):
        ClassFolders(str(folder / 'train'), classes=('cross', 'disc', 'oval', 'ring', 'square',
                                                     'star', 'triangle'))


def test_a_class_without_images_is_named(folder):
    (folder / 'train/zigzag').mkdir()
    with pytest.raises(DataError, match='train/zigzag has no images'):
        ClassFolders(str(folder / 'train'), pipeline=[])


def test_a_missing_root_is_named(tmp_path):
    with pytest.raises(DataError, match='nowhere'):
        ClassFolders(str(tmp_path / 'nowhere'))


@pytest.mark.parametrize('content', [b'', b'no image', None])
def test_an_unreadable_image_is_named(tmp_path, content):
    path = tmp_path / 'broken.png'
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match='broken.png cannot be read'):
        LoadNamedImage()(dict(img_path=str(path)))


def test_a_readable_image_is_read(tmp_path):
    cv2.imwrite(str(tmp_path / 'fine.png'), np.full((4, 6, 3), 9, np.uint8))
    assert LoadNamedImage()(dict(img_path=str(tmp_path / 'fine.png')))['img'].shape == (4, 6, 3)


def test_a_label_outside_num_classes_is_named_with_its_image():
    hook = CheckLabelsHook()
    head = type('Head', (), dict(num_classes=10))
    hook.before_train(type('Runner', (), dict(model=type('Model', (), dict(head=head)))))
    samples = [DataSample().set_gt_label(torch.tensor([label])) for label in (9, 10)]
    samples[1].set_metainfo(dict(img_path='data/zebra/1.png'))
    hook.before_train_iter(None, 0, dict(data_samples=samples[:1]))
    with pytest.raises(DataError, match='data/zebra/1.png has label 10.*num_classes=10'):
        hook.before_train_iter(None, 0, dict(data_samples=samples))
