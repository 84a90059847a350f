"""A user's own pictures: one folder per class, with or without a division into train and test."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tacit.data.options import FROM_LABELS
from tacit.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "WEBP")
_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".webp"}
_GREY = {"1", "L", "LA"}
_COLOUR = {"RGB", "RGBA", "P", "PA", "CMYK", "YCbCr"}
_IN_WORDS = {"L": "greyscale", "RGB": "in colour"}


@dataclass(frozen=True)
class Pictures:
    """Images [n, channels, height, width] with labels that count up the class names."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def needed(module: str, package: str, purpose: str) -> ModuleType:
    """An installed module, or an error that says which package to install and why."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise DataError(
            f"{purpose} needs the package {package}, which is not installed. Install it with "
            f"`pip install {package}`."
        ) from error


def _visible(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error.strerror}).") from error


def _class_folders(folder: Path) -> list[Path]:
    found = [entry for entry in _visible(folder) if entry.is_dir()]
    if not found:
        raise DataError(
            f"{folder}: holds no class folders. Put the images of each class into a folder of its "
            f"own: {folder.name}/CLASS/*.png."
        )
    return found


def _labelled_files(folder: Path, class_names: tuple[str, ...]) -> list[tuple[Path, int]]:
    files: list[tuple[Path, int]] = []
    for class_folder in _class_folders(folder):
        if class_folder.name not in class_names:
            raise DataError(
                f"{class_folder}: none of the {len(class_names)} classes, which are those given "
                f"with classes, or the folders of training images with "
                f"classes={FROM_LABELS!r}. Rename or remove it, or name it there."
            )
        label = class_names.index(class_folder.name)
        for file in _visible(class_folder):
            if file.suffix.lower() not in _SUFFIXES or not file.is_file():
                raise DataError(
                    f"{file}: not one of the image files read here ({', '.join(sorted(_SUFFIXES))})"
                    f". Convert it or move it out of the class folder."
                )
            files.append((file, label))
    if not files:
        raise DataError(
            f"{folder}: its class folders hold no images. Put image files into {folder.name}/CLASS/"
            f"; read are {', '.join(sorted(_SUFFIXES))}."
        )
    return files


class _Reader:
    """Opens images in the permitted formats only, none of which calls another program."""

    def __init__(self) -> None:
        self._pillow = needed("PIL.Image", "pillow", "reading a folder of images")

    def each(self, files: list[tuple[Path, int]], *, pixels: bool) -> Iterator[tuple[Path, Image]]:
        """Every image in turn, with its pixels decoded or only its header read."""
        for file, _ in files:
            try:
                with self._pillow.open(file, formats=_FORMATS) as image:
                    if pixels:
                        image.load()
                    yield file, image
            except (OSError, SyntaxError, ValueError, self._pillow.DecompressionBombError) as error:
                if isinstance(error, DataError):
                    raise
                raise DataError(
                    f"{file}: not a readable image ({type(error).__name__}). It is damaged, of "
                    f"another format than its name says, or too large; replace or remove it."
                ) from error

    def common_form(
        self, files: list[tuple[Path, int]], *, sized: bool, channels: int | None
    ) -> tuple[str, int, int]:
        """Colour mode, width and height, which all images share unless the user has fixed them.

        Were they worked out from images that differ, one record could change the model's shape.
        """
        first: tuple[Path, str, tuple[int, int]] | None = None
        for file, image in self.each(files, pixels=False):
            if image.mode not in _GREY | _COLOUR:
                raise DataError(
                    f"{file}: pixels of mode {image.mode!r}, which do not fit 8 bits per channel. "
                    f"Convert it to 8-bit greyscale or RGB."
                )
            mode = "L" if image.mode in _GREY else "RGB"
            first = first or (file, mode, image.size)
            if channels is None and mode != first[1]:
                raise DataError(
                    f"{file}: {_IN_WORDS[mode]}, but {first[0]} is {_IN_WORDS[first[1]]}. Make all "
                    f"images alike, or set channels to 1 or 3 to have them converted."
                )
            if not sized and image.size != first[2]:
                raise DataError(
                    f"{file}: {image.size[0]}x{image.size[1]} pixels, but {first[0]} has "
                    f"{first[2][0]}x{first[2][1]}. Make all images the same size, or set "
                    f"image_size to have them resized."
                )
        _, mode, (width, height) = first or ("", "L", (0, 0))
        return {None: mode, 1: "L", 3: "RGB"}[channels], width, height

    def read(self, files: list[tuple[Path, int]], mode: str, width: int, height: int) -> Pictures:
        """The pixels of all images, resized where they differ from the wanted size."""
        channels = 1 if mode == "L" else 3
        images = np.empty((len(files), channels, height, width), np.uint8)
        bilinear = self._pillow.Resampling.BILINEAR
        for index, (_, image) in enumerate(self.each(files, pixels=True)):
            plain = image.convert(mode)
            if plain.size != (width, height):
                plain = plain.resize((width, height), bilinear)
            pixels = np.asarray(plain, np.uint8).reshape(height, width, channels)
            images[index] = pixels.transpose(2, 0, 1)
        return Pictures(images, np.array([label for _, label in files], np.int64))


def read_image_folder(
    folder: Path, classes: tuple[str, ...] | None, image_size: int | None, channels: int | None
) -> tuple[Pictures, Pictures | None, tuple[str, ...]]:
    """Training images, test images if there is a test/ folder, and the class names in order.

    With a train/ folder only train/ and test/ are read; without one every folder is a class.
    `classes` are the permitted names of class folders; None takes those that are there. Files are
    taken in order of their names. All images have the same size and are all in grey or all in
    colour, unless `image_size` has them resized to a square or `channels` has them converted.
    """
    divided = (folder / "train").is_dir()
    train_folder = folder / "train" if divided else folder
    class_names = classes or tuple(entry.name for entry in _class_folders(train_folder))
    if len(class_names) < 2:
        raise DataError(f"{folder}: only one class, {class_names[0]!r}. Give at least two.")
    train = _labelled_files(train_folder, class_names)
    has_test = divided and (folder / "test").is_dir()
    test = _labelled_files(folder / "test", class_names) if has_test else []

    reader = _Reader()
    mode, width, height = reader.common_form(
        train + test, sized=image_size is not None, channels=channels
    )
    if image_size is not None:
        width = height = image_size
    return (
        reader.read(train, mode, width, height),
        reader.read(test, mode, width, height) if test else None,
        class_names,
    )
