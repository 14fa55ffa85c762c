"""`python3 -m tpu_runtime.bundle OUT.pyz`: the launcher as one file, for images that are not ours.

The same sources make the same bytes with the same Python: nothing of the clock, the user or the compressor
goes into the archive. On PYTHONPATH, it is found by torch as the directory of the sources is
(`tpu_runtime.emulate`).
"""

from __future__ import annotations

import argparse
import io
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Optional, Sequence

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterator

_SHEBANG = b"#!/usr/bin/env python3\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_PACKAGE = Path(__file__).parent
_BUILD = "BUILD"
_UNCHECKED = (1).to_bytes(4, "little") + bytes(8)
"""Says of compiled code that nobody need compare it with its source (PEP 552)."""
_NO_REFERENCES = 2
"""The last version of marshal's format whose bytes do not depend on what else is in memory."""


def bundle() -> bytes:
    """The archive, which Python runs as it is.

    It has each source, and the same compiled for the Python that makes the archive: another Python takes no
    notice, one of the same version starts in half the time.
    """
    import zipfile  # noqa: PLC0415 - not in launchers, which are to start fast

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, source in _sources():
            _add(archive, name, source)
            if name.endswith(".py"):
                _add(archive, f"{name}c", _compiled(name, source))
        _add(archive, _BUILD, _checksum().encode())
    return _SHEBANG + buffer.getvalue()


def build() -> str:
    """What tells this launcher from one of other sources: a checksum of them."""
    loader = globals()["__loader__"]
    if hasattr(loader, "archive"):
        return str(loader.get_data(_BUILD).decode())
    return _checksum()


def location() -> Path:
    """What has to be on PYTHONPATH for this launcher to be found: the archive that it is, or a directory."""
    archive = getattr(globals()["__loader__"], "archive", None)
    return Path(archive).absolute() if archive else _PACKAGE.parent


def _sources() -> Iterator[tuple[str, bytes]]:
    """Names in the archive, and what is there."""
    yield "__main__.py", (_PACKAGE / "__main__.py").read_bytes()
    files = [*sorted(_PACKAGE.rglob("*.py")), *sorted(_PACKAGE.parent.glob("*.dist-info/*"))]
    for file in files:
        yield file.relative_to(_PACKAGE.parent).as_posix(), file.read_bytes()


def _checksum() -> str:
    checksum = 0
    for name, source in _sources():
        checksum = zlib.crc32(source, zlib.crc32(name.encode(), checksum))
    return f"{checksum:08x}"


def _compiled(name: str, source: bytes) -> bytes:
    import importlib.util  # noqa: PLC0415 - as below
    import marshal  # noqa: PLC0415 - as below

    code = compile(source, name, "exec", dont_inherit=True)
    return importlib.util.MAGIC_NUMBER + _UNCHECKED + marshal.dumps(code, _NO_REFERENCES)


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    import zipfile  # noqa: PLC0415 - not in launchers, which are to start fast

    info = zipfile.ZipInfo(name, _EPOCH)
    info.external_attr = 0o644 << 16
    info.create_system = 3  # Unix
    archive.writestr(info, data)


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Write the archive."""
    parser = argparse.ArgumentParser(prog="tpu_runtime.bundle", description="Write the launcher as one file.")
    parser.add_argument("out", type=Path, help="where to, such as tpu-launch.pyz")
    out: Path = parser.parse_args(arguments).out
    out.write_bytes(bundle())
    out.chmod(0o755)


if __name__ == "__main__":
    main()
