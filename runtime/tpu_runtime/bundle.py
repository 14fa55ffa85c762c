"""`python3 -m tpu_runtime.bundle OUT.pyz`: the launcher as one file, for images that are not ours.

The same sources make the same bytes: nothing of the clock, the user or the compressor goes into the archive.
On PYTHONPATH, it is found by torch as the directory of the sources is (`tpu_runtime.emulate`).
"""

from __future__ import annotations

import argparse
import io
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Optional, Sequence

if TYPE_CHECKING:
    import zipfile

_SHEBANG = b"#!/usr/bin/env python3\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_PACKAGE = Path(__file__).parent


def bundle() -> bytes:
    """The archive, which Python runs as it is."""
    import zipfile  # noqa: PLC0415 - not in launchers, which are to start fast

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, "__main__.py", _PACKAGE / "__main__.py")
        for source in sorted(_PACKAGE.rglob("*.py")):
            _add(archive, f"{_PACKAGE.name}/{source.relative_to(_PACKAGE).as_posix()}", source)
        for entry in sorted(_PACKAGE.parent.glob("*.dist-info/*")):
            _add(archive, f"{entry.parent.name}/{entry.name}", entry)
    return _SHEBANG + buffer.getvalue()


def build() -> str:
    """What tells this launcher from one of other sources: a checksum of the archive it is, or would be."""
    own = location()
    return f"{zlib.crc32(own.read_bytes() if own.is_file() else bundle()):08x}"


def location() -> Path:
    """What has to be on PYTHONPATH for this launcher to be found: the archive that it is, or a directory."""
    archive = getattr(globals()["__loader__"], "archive", None)
    return Path(archive).absolute() if archive else _PACKAGE.parent


def _add(archive: zipfile.ZipFile, name: str, source: Path) -> None:
    import zipfile  # noqa: PLC0415 - as above

    info = zipfile.ZipInfo(name, _EPOCH)
    info.external_attr = 0o644 << 16
    info.create_system = 3  # Unix
    archive.writestr(info, source.read_bytes())


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Write the archive."""
    parser = argparse.ArgumentParser(prog="tpu_runtime.bundle", description="Write the launcher as one file.")
    parser.add_argument("out", type=Path, help="where to, such as tpu-launch.pyz")
    out: Path = parser.parse_args(arguments).out
    out.write_bytes(bundle())
    out.chmod(0o755)


if __name__ == "__main__":
    main()
