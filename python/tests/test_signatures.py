"""What an editor and a type checker see: every public function has types and says what it does."""

import inspect
import typing

import pytest

import stretto
from stretto import symm_mem


def public():
    yield "symm_mem.empty", symm_mem.empty
    yield "Program.__call__", stretto.Program.__call__
    yield "ProgramFile.__call__", stretto.ProgramFile.__call__
    for name in stretto.__all__:
        if inspect.isfunction(getattr(stretto, name)):
            yield name, getattr(stretto, name)


@pytest.mark.parametrize("name, function", list(public()))
def test_a_public_function_has_types_and_a_docstring(name, function):
    assert inspect.getdoc(function), name
    function = inspect.unwrap(function)
    hints = typing.get_type_hints(function)
    for parameter in inspect.signature(function).parameters:
        assert parameter == "self" or parameter in hints, (name, parameter)
    assert "return" in hints, name


def test_the_names_that_are_offered_are_there_once():
    assert sorted(stretto.__all__) == stretto.__all__
    assert len(set(stretto.__all__)) == len(stretto.__all__)
    assert set(stretto.ops.__all__) < set(stretto.__all__)
