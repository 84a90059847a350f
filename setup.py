"""Builds the optional compiled kernels; without a compiler the package is installed without them.

The sources under `per_level` are compiled once for each instruction set; which one runs is decided
when the library is loaded. OpenMP is compiled for but not linked: its functions are found in the
runtime that torch has already loaded, so that there is never a second pool of threads.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = Path("tacit") / "native" / "src"
ONCE = ["interface.cpp", "release.cpp", "convolutions.cpp", "selections.cpp", "exact_sums.cpp"]
PER_LEVEL = ["noise.cpp", "tags.cpp", "convolution.cpp", "winograd.cpp", "winograd_gradient.cpp"]
PER_LEVEL += ["forward.cpp", "backward.cpp", "pixels.cpp", "normalisation.cpp"]
PER_LEVEL += ["embedding.cpp", "outer.cpp", "exact.cpp", "affine.cpp", "selection.cpp", "table.cpp"]
OPTIONS = ["-std=c++17", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"]
OPTIONS += ["-fvisibility=default"]
X86_LEVELS = {
    "baseline": [],
    "avx2": ["-DTACIT_LEVEL_AVX2", "-mavx2", "-mfma"],
    "avx512": [
        *("-DTACIT_LEVEL_AVX512", "-mavx2", "-mfma", "-mavx512f", "-mavx512dq", "-mavx512bw"),
        *("-mavx512vl", "-mprefer-vector-width=512"),
    ],
}


class BuildOptional(build_ext):
    """Compiles the kernels, or says why not and goes on."""

    def build_extension(self, ext: Extension) -> None:
        try:
            self._compile(ext)
        except Exception as error:
            print(
                f"tacit: no compiled kernels, everything works without ({error})", file=sys.stderr
            )

    def get_ext_filename(self, fullname: str) -> str:
        """One name for every version of Python: the library knows nothing of it."""
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def _compile(self, ext: Extension) -> None:
        x86 = platform.machine() in ("x86_64", "AMD64")
        options = [*OPTIONS, *(["-DTACIT_X86"] if x86 else [])]
        options += ["-fopenmp"] if self._works("-fopenmp") else []
        objects = self._objects(ONCE, options, "once")
        for level, flags in (X86_LEVELS if x86 else {"baseline": []}).items():
            objects += self._objects(PER_LEVEL, [*options, *flags], level)
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(objects, str(target), target_lang="c++")

    def _objects(self, names: list[str], options: list[str], level: str) -> list[str]:
        folder = Path(self.build_temp) / level
        sources = [str(SOURCES / name) for name in names]
        found: list[str] = self.compiler.compile(
            sources,
            output_dir=str(folder),
            extra_postargs=options,
            depends=[str(path) for path in SOURCES.glob("*.h")],
        )
        return found

    def _works(self, option: str) -> bool:
        probe = Path(self.build_temp) / "probe.cpp"
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.write_text("int main() { return 0; }\n", encoding="utf-8")
        try:
            self.compiler.compile([str(probe)], output_dir=self.build_temp, extra_postargs=[option])
        except Exception:
            return False
        return True


KERNELS = Extension("tacit.native.kernels", [str(SOURCES / name) for name in ONCE], optional=True)

setup(ext_modules=[KERNELS], cmdclass={"build_ext": BuildOptional})
