"""Read goldens from a real device: tables of its special-function unit, instructions, quotients, kernels.

`libraries` are kernels of Liger-Kernel and flash-linear-attention (fla-core), which must be installed.

    python tests/goldens/make.py tables opcodes quotients kernels libraries [--into FOLDER]

Writes verifier/machine/tables/sm_XX/ and files of tests/goldens (below FOLDER if given), each with the device
and the toolchain that answered. `tables` ends by comparing the machine's unit with the device for every
float32: it raises if one differs.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def main() -> None:
    """Do what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="+", choices=["tables", "opcodes", "quotients", "kernels", "libraries"])
    parser.add_argument("--into", type=Path, default=Path(__file__).parents[2])
    asked = parser.parse_args()
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
    for name in asked.what:
        if name == "tables":
            import read_unit

            read_unit.read(asked.into)
        elif name == "opcodes":
            import read_opcodes

            read_opcodes.read(asked.into)
        elif name == "quotients":
            import read_quotients

            read_quotients.read(asked.into)
        elif name == "libraries":
            import read_libraries

            read_libraries.read(asked.into)
        else:
            import read_kernels

            read_kernels.read(asked.into)


if __name__ == "__main__":
    main()
