#!/usr/bin/env python3
"""Makes a wheel of an unpacked release: release-wheel.py TREE VERSION FOLDER.

The wheel has the program and the demo model as data files: pip puts them into bin and share of the environment. A module of the same name
is for `python -m millrace`. It needs no network and no other package. The platform tag is manylinux_X_Y of the C library that the program
needs.
"""

import base64
import hashlib
import pathlib
import platform
import re
import sys
import zipfile

MAIN = '''"""Runs the program millrace that this package installed."""

import os
import sys
import sysconfig


def main():
    """Replaces this process with the program."""
    here = os.path.dirname(os.path.abspath(__file__))
    found = []
    # Beside this package (pip --prefix, --user and --target each have other folders), or where Python puts scripts.
    for folder in [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", os.name + "_user"),
                   os.path.join(here, "..", "..", "..", "..", "bin"), os.path.join(here, "..", "bin")]:
        program = os.path.normpath(os.path.join(folder, "millrace"))
        if os.access(program, os.X_OK):
            os.execv(program, [program, *sys.argv[1:]])
        found.append(program)
    sys.exit("millrace: found no program at " + ", ".join(found) + ": install the package again")


if __name__ == "__main__":
    main()
'''

METADATA = """Metadata-Version: 2.1
Name: millrace
Version: {version}
Summary: LLM server with OpenAI-style HTTP and NATS interfaces
License: Apache-2.0
Home-page: https://github.com/millrace/millrace
Requires-Python: >=3.8
Classifier: Operating System :: POSIX :: Linux
Description-Content-Type: text/markdown

`millrace serve` serves a demo model on http://127.0.0.1:8080; `python -m millrace` is the same program.

"""

WHEEL = "Wheel-Version: 1.0\nGenerator: millrace release-wheel.py\nRoot-Is-Purelib: false\nTag: py3-none-{platform}\n"


def needed_glibc(program: bytes) -> str:
    """Returns the newest version of the C library that the program needs, as 2_31."""
    versions = {(int(major), int(minor)) for major, minor in re.findall(rb"GLIBC_(\d+)\.(\d+)", program)}
    if not versions:
        raise SystemExit("release-wheel.py: found no symbol versions of glibc in the program")
    # 2.31 is the oldest that scripts/build/sysroot.sh links, and auditwheel knows no 2.30.
    return "{}_{}".format(*max(versions | {(2, 31)}))


def main() -> None:
    if len(sys.argv) != 4:
        raise SystemExit("usage: release-wheel.py TREE VERSION FOLDER")
    tree, version, folder = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
    program = (tree / "bin/millrace").read_bytes()
    tag = f"manylinux_{needed_glibc(program)}_{platform.machine()}"
    data, info = f"millrace-{version}.data", f"millrace-{version}.dist-info"

    files = {"millrace/__init__.py": b'"""The LLM server millrace."""\n', "millrace/__main__.py": MAIN.encode()}
    files[f"{data}/scripts/millrace"] = program
    for path in sorted((tree / "share").rglob("*")):
        if path.is_file():
            files[f"{data}/data/share/{path.relative_to(tree / 'share').as_posix()}"] = path.read_bytes()
    for name in ("LICENSE", "THIRD_PARTY_NOTICES"):
        files[f"{info}/{name}"] = (tree / name).read_bytes()
    files[f"{info}/METADATA"] = METADATA.format(version=version).encode()
    files[f"{info}/WHEEL"] = WHEEL.format(platform=tag).encode()

    record = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(content)}\n")
    files[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"]).encode()

    wheel = folder / f"millrace-{version}-py3-none-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # the same files give the same wheel
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name.endswith("scripts/millrace") else 0o100644) << 16
            archive.writestr(entry, content)
    print(wheel)


if __name__ == "__main__":
    main()
