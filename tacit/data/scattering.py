"""The two-layer scattering transform of an image: wavelets, modulus, wavelets, modulus, average.

Written here because kymatio 0.3.0 does not run with the SciPy that the rest needs. Filters and
borders follow its conventions, so that values agree with it to the fourth digit
(Bruna and Mallat 2013; Andreux et al. 2020). Nothing is learned: the features of an image depend
on that image alone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from tacit.errors import ArgumentError


class Scattering:
    """Scattering coefficients up to order two, averaged over squares of 2^scale pixels.

    Takes [n, channels, height, width]; returns [n, channels·paths, height/2^scale, width/2^scale]
    with paths = 1 + scale·angles + angles²·scale·(scale−1)/2, channel by channel.

    >>> Scattering((28, 28), scale=2, angles=8)(torch.zeros(1, 1, 28, 28)).shape
    torch.Size([1, 81, 7, 7])
    """

    def __init__(self, size: tuple[int, int], scale: int = 2, angles: int = 8) -> None:
        if min(size) < 2 << scale:
            raise ArgumentError(
                f"scale is {scale}, but images are {size[0]}×{size[1]}: the transform averages over"
                f" {1 << scale} pixels and needs at least twice that; choose a smaller scale"
            )
        self._scale, self._angles = scale, angles
        step = 1 << scale
        rows, columns = (((side + step) // step + 1) * step for side in size)
        above, left = (rows - size[0]) // 2, (columns - size[1]) // 2
        self._border = (left, columns - size[1] - left, above, rows - size[0] - above)
        wavelets = [
            _spectrum(_morlet(rows, columns, octave, angle, angles))
            for octave in range(scale)
            for angle in range(angles)
        ]
        self._wavelets = torch.stack(wavelets).view(scale, angles, rows, columns)
        self._averages = [
            (_average(rows, scale, octave), _average(columns, scale, octave).T)
            for octave in range(scale)
        ]

    def __call__(self, images: Tensor) -> Tensor:
        count, channels = images.shape[:2]
        padded = pad(images.float(), self._border, mode="reflect")
        paths = torch.cat(self._paths(padded.flatten(0, 1)), 1)
        return paths.view(count, channels * paths.shape[1], *paths.shape[2:])

    def _paths(self, x: Tensor) -> list[Tensor]:
        """Coefficients of [n, rows, columns] by order; each entry is [n, paths, …]."""
        zeroth, first, second = [self._averaged(x[:, None], 0)], [], []
        spectrum = torch.fft.fft2(x)
        for octave in range(self._scale):
            moduli = self._moduli(spectrum[:, None], self._wavelets[octave], 0, octave)
            first.append(self._averaged(moduli, octave))
            if octave + 1 == self._scale:
                break
            for spectra in torch.fft.fft2(moduli).unbind(1):
                for finer in range(octave + 1, self._scale):
                    wavelets = _cropped(self._wavelets[finer], octave)
                    again = self._moduli(spectra[:, None], wavelets, octave, finer)
                    second.append(self._averaged(again, finer))
        return zeroth + first + second

    @staticmethod
    def _moduli(spectra: Tensor, wavelets: Tensor, now: int, then: int) -> Tensor:
        """Moduli of the wavelet transform, from resolution 2^−now to 2^−then."""
        rows, columns = (side >> (then - now) for side in wavelets.shape[-2:])
        tiles = [
            (..., slice(top, top + rows), slice(left, left + columns))
            for top in range(0, wavelets.shape[-2], rows)
            for left in range(0, wavelets.shape[-1], columns)
        ]
        folded = spectra[tiles[0]] * wavelets[tiles[0]]
        for tile in tiles[1:]:
            folded += spectra[tile] * wavelets[tile]
        signal = torch.fft.ifft2(folded)
        squares: Tensor = signal.real.square() + signal.imag.square()
        return squares.sqrt_().div_(len(tiles))

    def _averaged(self, x: Tensor, octave: int) -> Tensor:
        left, right = self._averages[octave]
        return left @ x @ right


def _morlet(rows: int, columns: int, octave: int, angle: int, angles: int) -> Tensor:
    """A Gaussian, longer across than along, times a plane wave, made to have mean zero."""
    turn = (angles // 2 - 1 - angle) * math.pi / angles
    spread: float = 0.8 * 2**octave
    slant = 4 / angles
    down, right = _lattice(rows)[:, None], _lattice(columns)[None]
    along = math.cos(turn) * down + math.sin(turn) * right
    across = math.cos(turn) * right - math.sin(turn) * down
    envelope = torch.exp(-(along**2 + (slant * across) ** 2) / (2 * spread**2))
    wave = torch.polar(envelope, 0.75 * math.pi / 2**octave * along)
    wave, envelope = _periodic(wave), _periodic(envelope)
    centred: Tensor = wave - envelope * (wave.sum() / envelope.sum())
    return centred * slant / (math.tau * spread**2)


def _average(side: int, scale: int, octave: int) -> Tensor:
    """The matrix that smooths a signal of resolution 2^−octave and keeps every 2^scale-th pixel.

    One row at either end, where the border lies, is left out.
    """
    spread = 0.8 * 2 ** (scale - 1)
    bell = torch.exp(-(_lattice(side) ** 2) / (2 * spread**2)).view(5, side).sum(0)
    response = torch.fft.fft(bell / (math.sqrt(math.tau) * spread)).real
    kernel = torch.fft.ifft(_halves(response, octave, 0)).real
    size = side >> octave
    outputs = torch.arange(1, (side >> scale) - 1)[:, None] << (scale - octave)
    matrix: Tensor = kernel[(outputs - torch.arange(size)) % size]
    return matrix.float()


def _lattice(side: int) -> Tensor:
    """Places of pixels in five periods around the origin."""
    return torch.arange(-2 * side, 3 * side, dtype=torch.float64)


def _periodic(image: Tensor) -> Tensor:
    """The sum over five periods in either direction."""
    rows, columns = (side // 5 for side in image.shape)
    return image.view(5, rows, 5, columns).sum((0, 2))


def _spectrum(image: Tensor) -> Tensor:
    spectrum: Tensor = torch.fft.fft2(image)
    return spectrum.real.float()


def _cropped(spectra: Tensor, octave: int) -> Tensor:
    """The low frequencies that remain at resolution 2^−octave."""
    return _halves(_halves(spectra, octave, -1), octave, -2)


def _halves(spectrum: Tensor, octave: int, axis: int) -> Tensor:
    half = spectrum.shape[axis] >> (octave + 1)
    kept = (spectrum.narrow(axis, 0, half), spectrum.narrow(axis, -half, half))
    return spectrum if octave == 0 else torch.cat(kept, axis)
