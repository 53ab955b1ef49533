"""The images behind a list of inputs: files, folders, globs, videos, cameras, arrays."""
import glob
from itertools import chain
from pathlib import Path
from typing import Any, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Union

import cv2
import numpy as np

from mmrla.datasets.folders import IMAGE_SUFFIXES

VIDEO_SUFFIXES = ('.mp4', '.avi', '.mov', '.mkv', '.webm', '.m4v', '.mpg', '.mpeg', '.wmv')
STREAMS = ('rtsp://', 'rtmp://', 'http://', 'https://')

Input = Union[str, int, Path, np.ndarray]


class InputError(ValueError):
    """An input that holds nothing to predict on; the message names it."""


class Frame(NamedTuple):
    """One image to predict on.

    Attributes:
        name: The file name, relative to the folder that was given. A video's frames have its
            name and a number.
        path: The image file; None for a frame of a video and for an array.
        image: Shape (H, W, 3), BGR; None for an image file, which is read when it is used.
        video: The video that the frame belongs to; None for an image.
    """
    name: str
    path: Optional[str] = None
    image: Optional[np.ndarray] = None
    video: Optional['Video'] = None

    def pixels(self) -> np.ndarray:
        """The image, shape (H, W, 3), BGR."""
        if self.image is not None:
            return self.image
        image = cv2.imread(self.path, cv2.IMREAD_COLOR)
        if image is None:
            raise InputError(f'image {self.path} cannot be read; it may be damaged')
        return image


class Video:
    """The frames of a video file, a stream or a camera.

    Args:
        source: A path, an address, or the number of a camera.
    """

    def __init__(self, source: Union[str, int]) -> None:
        self.is_camera = isinstance(source, int)
        self.name = f'camera{source}' if self.is_camera else Path(str(source)).name
        self.capture = cv2.VideoCapture(source)
        if not self.capture.isOpened():
            raise InputError(f'camera {source} cannot be opened' if self.is_camera else
                             f'video {source} cannot be opened; it may be damaged, or its codec '
                             'is unknown to OpenCV')
        self.fps = self.capture.get(cv2.CAP_PROP_FPS) or 25.0
        self.count = max(0, int(self.capture.get(cv2.CAP_PROP_FRAME_COUNT)))

    def __len__(self) -> int:
        """The number of frames; 0 for a camera, whose end is unknown."""
        return self.count

    def __iter__(self) -> Iterator[Frame]:
        number = 0
        while True:
            is_there, image = self.capture.read()
            if not is_there:
                break
            yield Frame(f'{self.name}#{number:06d}', image=image, video=self)
            number += 1
        self.capture.release()
        if not number:
            raise InputError(f'video {self.name} has no frames that can be read')


class Inputs:
    """Frames in order, and how many there are.

    Args:
        parts: Lists of frames, and videos.
    """

    def __init__(self, parts: Sequence[Union[List[Frame], Video]]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[Frame]:
        return chain.from_iterable(self.parts)


def open_inputs(inputs: Union[Input, Iterable[Input]]) -> Inputs:
    """Find what there is to predict on, and complain at once about what is missing.

    Args:
        inputs: One or several of: an image, a folder, a glob such as ``'*.jpg'``, a video, a
            stream's address, the number of a camera, an array of shape (H, W, 3) in BGR.
    """
    if isinstance(inputs, (str, int, Path, np.ndarray)):
        inputs = [inputs]
    return Inputs([_open(item, number) for number, item in enumerate(inputs)])


def _open(item: Any, number: int) -> Union[List[Frame], Video]:
    if isinstance(item, np.ndarray):
        return [Frame(f'array{number:06d}', image=item)]
    text = str(item)
    if text.isdigit() and not Path(text).exists():
        return Video(int(text))
    if text.startswith(STREAMS):
        return Video(text)
    path = Path(text).expanduser()
    if path.is_dir():
        return _folder(path)
    if path.is_file():
        return _file(path)
    if glob.has_magic(text):
        return _glob(text)
    raise InputError(f'input {text} does not exist')


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()


def _folder(folder: Path) -> List[Frame]:
    """The images of a folder; those of its subfolders if it has none itself."""
    paths = [path for path in folder.iterdir() if _is_image(path)]
    paths = paths or [path for path in folder.rglob('*') if _is_image(path)]
    if not paths:
        raise InputError(f'folder {folder} has no images ({", ".join(sorted(IMAGE_SUFFIXES))})')
    return [Frame(str(path.relative_to(folder)), str(path)) for path in sorted(paths)]


def _file(path: Path) -> Union[List[Frame], Video]:
    if path.suffix.lower() in VIDEO_SUFFIXES:
        return Video(str(path))
    if path.suffix.lower() in IMAGE_SUFFIXES:
        return [Frame(path.name, str(path))]
    raise InputError(f'input {path} is neither an image nor a video by its name; known are '
                     f'{", ".join((*sorted(IMAGE_SUFFIXES), *VIDEO_SUFFIXES))}')


def _glob(pattern: str) -> List[Frame]:
    paths = sorted(Path(path) for path in glob.glob(pattern, recursive=True))
    frames = [Frame(path.name, str(path)) for path in paths if _is_image(path)]
    if not frames:
        raise InputError(f'no image matches {pattern}')
    return frames
