"""What the extension module shows to the other libraries of a process. C++ libraries of PyTorch and
CUDA export their copies of std:: templates, of other versions, and the loader takes the first of a
name: one that the module exports too would be theirs. Crashes in streams and locales came of it."""

import pathlib
import struct

import pytest

from stretto import _core

_SHT_DYNSYM = 11
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


def exported(path):
    """The names that an ELF file defines for others."""
    image = pathlib.Path(path).read_bytes()
    if image[:6] != b"\x7fELF\x02\x01":
        pytest.skip("no ELF file of 64 bits")
    (table,) = struct.unpack_from("<Q", image, 0x28)
    size, count = struct.unpack_from("<HH", image, 0x3A)
    sections = [_SECTION.unpack_from(image, table + i * size) for i in range(count)]
    for _, kind, _, _, at, num_bytes, link, *_ in sections:
        if kind != _SHT_DYNSYM:
            continue
        names = sections[link][4]
        for name, _, _, section, *_ in _SYMBOL.iter_unpack(image[at : at + num_bytes]):
            if section != 0:
                begin = names + name
                yield image[begin : image.index(b"\0", begin)].decode()


def test_the_module_shows_its_own_names_alone():
    names = set(exported(_core.__file__))
    assert "PyInit__core" in names
    assert sum("7stretto" in n for n in names) > 100  # the language, for program files
    assert [n for n in names - {"PyInit__core"} if "7stretto" not in n] == []
